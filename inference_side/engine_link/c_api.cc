// The C API on top of EngineLink. It checks arguments, and implements Engine with the callbacks.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "inference_side/engine_link/destination.h"
#include "inference_side/engine_link/engine_link.h"
#include "inference_side/engine_link/led_steps.h"
#include "inference_side/engine_link/starting_rank.h"
#include "inference_side/engine_link/wsync/engine.h"
#include "inference_side/reload/shard.h"
#include "shared/base/fork_guard.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/weight_limits.h"

namespace {

using wsync::ErrorCode;
using wsync::Result;
using wsync::engine::Answer;

wsync_version c_version(const wsync::Version& version) {
  return {.epoch = version.epoch, .step = version.step};
}

wsync::Version version_of(const wsync_version& version) {
  return {.epoch = version.epoch, .step = version.step};
}

static_assert(sizeof(wsync_step_header) == 40, "it has no padding, so that it can be compared");

wsync_step_header c_step_header(const wsync::engine::StepHeader& header) {
  return {.word = header.go ? WSYNC_STEP_GO : WSYNC_STEP_STOP,
          .version_epoch = header.version.epoch,
          .version_step = header.version.step,
          .step = header.step,
          .decision = header.decision,
          .leader = header.leader};
}

// Returns std::nullopt for what no leader has written.
std::optional<wsync::engine::StepHeader> step_header_of(const wsync_step_header& header) {
  if (header.word != WSYNC_STEP_GO && header.word != WSYNC_STEP_STOP) return std::nullopt;
  return wsync::engine::StepHeader{
      .go = header.word == WSYNC_STEP_GO,
      .step = header.step,
      .decision = header.decision,
      .leader = header.leader,
      .version = {.epoch = header.version_epoch, .step = header.version_step}};
}

wsync_pause_mode c_pause_mode(wsync::PauseMode mode) {
  switch (mode) {
    case wsync::PauseMode::kAbort:
      return WSYNC_PAUSE_ABORT;
    case wsync::PauseMode::kWait:
      return WSYNC_PAUSE_WAIT;
    case wsync::PauseMode::kKeep:
      return WSYNC_PAUSE_KEEP;
  }
  return WSYNC_PAUSE_ABORT;
}

wsync_cache_policy c_cache_policy(wsync::CachePolicy policy) {
  switch (policy) {
    case wsync::CachePolicy::kEngine:
      return WSYNC_CACHES_ENGINE;
    case wsync::CachePolicy::kClear:
      return WSYNC_CACHES_CLEAR;
    case wsync::CachePolicy::kKeep:
      return WSYNC_CACHES_KEEP;
  }
  return WSYNC_CACHES_ENGINE;
}

wsync_state c_rank_state(wsync::control::RankState state) {
  switch (state) {
    case wsync::control::RankState::kLoading:
      return WSYNC_STATE_LOADING;
    case wsync::control::RankState::kServing:
      return WSYNC_STATE_SERVING;
    case wsync::control::RankState::kPaused:
      return WSYNC_STATE_PAUSED;
    case wsync::control::RankState::kLoaded:
      return WSYNC_STATE_LOADED;
    case wsync::control::RankState::kTainted:
      return WSYNC_STATE_TAINTED;
  }
  return WSYNC_STATE_TAINTED;
}

// The numeric value of an enumerator passed from C. It may be any number, and in C++ it is
// undefined behaviour to read an enumeration value that is out of range.
template <class Enum>
int number_of(const Enum& value) {
  static_assert(sizeof(Enum) == sizeof(int));
  int number = 0;
  std::memcpy(&number, &value, sizeof number);
  return number;
}

class CallbackEngine final : public wsync::engine::Engine {
 public:
  // `steps`: null unless the replica's steps are led. Borrowed.
  CallbackEngine(const wsync_engine_options& options, wsync::engine::LedSteps* steps)
      : callbacks_(options.callbacks),
        user_(options.user),
        on_gpu_(number_of(options.weights_on) == WSYNC_DEVICE_CUDA),
        steps_(steps) {}

  // Whether one of the callbacks is running on the calling thread.
  [[nodiscard]] bool runs_here() const { return inside_.load() == std::this_thread::get_id(); }
  // Why the next call or report of the calling thread fails.
  void explain(const char* sentence) {
    const std::lock_guard lock(mutex_);
    if (sentence == nullptr)
      why_.erase(std::this_thread::get_id());
    else
      why_[std::this_thread::get_id()] = sentence;
  }
  // What explain() was told on this thread. A sentence belongs to one answer only.
  std::string take_sentence() {
    const std::lock_guard lock(mutex_);
    auto said = why_.extract(std::this_thread::get_id());
    return said ? std::move(said.mapped()) : std::string();
  }
  // The result of something that ended with `code`. `what` is the subject of the error.
  Result<> outcome(int code, std::string_view what) {
    const std::string why = take_sentence();
    if (code == 0) return {};
    return wsync::fail(ErrorCode::kRefused,
                       why.empty() ? fmt::format("the engine's {} failed with {}", what, code)
                                   : fmt::format("the engine's {} failed: {}", what, why));
  }

  Result<> pause(const wsync::engine::PauseRequest& request) override {
    const Inside inside(*this);
    const wsync_pause pause{.mode = c_pause_mode(request.mode),
                            .deadline_ms = request.deadline_ms,
                            .version = c_version(request.version),
                            .bytes = request.bytes,
                            .caches = c_cache_policy(request.caches)};
    if (callbacks_.pause != nullptr)
      WSYNC_TRY(outcome(callbacks_.pause(user_, &pause), "pause callback"));
    if (steps_ != nullptr) steps_->handle_pause();
    return {};
  }
  Result<> check_version(const wsync::Version& version) override {
    const Inside inside(*this);
    if (callbacks_.check_version == nullptr) return {};
    const int code = callbacks_.check_version(user_, c_version(version));
    std::string why = take_sentence();
    if (code == 0) return {};
    // The sidecar says who refuses which version. Users of an adapter have written no callback.
    return wsync::fail(
        ErrorCode::kRefused,
        why.empty() ? fmt::format("the engine gives no reason (code {})", code) : std::move(why));
  }
  Result<> load_begin(const wsync::Version& version) override {
    const Inside inside(*this);
    if (callbacks_.load_begin == nullptr) return {};
    return outcome(callbacks_.load_begin(user_, c_version(version)), "load_begin callback");
  }
  Result<Answer> load_layer(const wsync::Version& version, std::uint32_t layer,
                            std::span<const wsync::engine::LayerTensor> tensors) override {
    const Inside inside(*this);
    if (callbacks_.load_layer == nullptr) return Answer::kNow;
    std::vector<wsync_layer_tensor> list;
    list.reserve(tensors.size());
    for (const auto& t : tensors)
      list.push_back({.tensor = t.tensor, .data = t.bytes.data(), .bytes = t.bytes.size()});
    const auto answered =
        answer(callbacks_.load_layer(user_, c_version(version), layer, list.data(), list.size()),
               "load_layer callback");
    if (answered && *answered == Answer::kLater && on_gpu_ && callbacks_.load_given_up == nullptr)
      return wsync::fail(ErrorCode::kInvalidInput,
                         fmt::format("the engine answers layer {} later, which on a GPU needs the "
                                     "callback load_given_up: layers come one by one there, and "
                                     "nothing else says that no further one comes",
                                     layer));
    return answered;
  }
  void load_given_up(const wsync::Version& version) override {
    const Inside inside(*this);
    if (callbacks_.load_given_up != nullptr) callbacks_.load_given_up(user_, c_version(version));
  }
  Result<Answer> commit(const wsync::Version& version) override {
    const Inside inside(*this);
    if (callbacks_.commit == nullptr) return Answer::kNow;  // a controller
    return answer(callbacks_.commit(user_, c_version(version)), "commit callback");
  }
  Result<> resume() override {
    const Inside inside(*this);
    if (callbacks_.resume != nullptr)
      WSYNC_TRY(outcome(callbacks_.resume(user_), "resume callback"));
    if (steps_ != nullptr) steps_->handle_resume();
    return {};
  }
  Result<> read_tensor(std::uint32_t tensor, std::uint64_t offset,
                       std::span<std::byte> out) override {
    const Inside inside(*this);
    return outcome(callbacks_.read_tensor(user_, tensor, offset, out.data(), out.size()),
                   "read_tensor callback");
  }
  std::string why_unreadable() const override {
    if (callbacks_.read_tensor != nullptr) return {};
    return "this engine gives no read_tensor, so its tensors cannot be read back";
  }

 private:
  Result<Answer> answer(int code, std::string_view callback) {
    if (code == WSYNC_LATER) return Answer::kLater;
    WSYNC_TRY(outcome(code, callback));
    return Answer::kNow;
  }

  class Inside {
   public:
    explicit Inside(CallbackEngine& engine) : engine_(engine) {
      engine_.inside_ = std::this_thread::get_id();
    }
    ~Inside() { engine_.inside_ = std::thread::id(); }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    CallbackEngine& engine_;
  };

  std::atomic<std::thread::id> inside_{};  // callbacks run one at a time
  wsync_engine_callbacks callbacks_;
  void* user_;
  const bool on_gpu_;
  wsync::engine::LedSteps* steps_;
  std::mutex mutex_;
  std::map<std::thread::id, std::string> why_;  // protected by mutex_
};

// Returns std::nullopt for a number that is not a wsync_take.
std::optional<wsync::control::TakeMode> take_mode_of(int number) {
  switch (number) {
    case WSYNC_TAKE_PIECES:
      return wsync::control::TakeMode::kPieces;
    case WSYNC_TAKE_WHOLE:
      return wsync::control::TakeMode::kWhole;
    case WSYNC_TAKE_ADOPT:
      return wsync::control::TakeMode::kAdopt;
    case WSYNC_TAKE_BORROW:
      return wsync::control::TakeMode::kBorrow;
    default:
      return std::nullopt;
  }
}

Result<wsync::engine::RankTensor> read_tensor_argument(const wsync_tensor& tensor, wsync_take take,
                                                       int weights_on) {
  if (tensor.name == nullptr || tensor.dtype == nullptr)
    return wsync::fail(ErrorCode::kInvalidInput, "a tensor needs a name and a dtype");
  const std::string name = tensor.name;
  const auto refuse = [&](std::string_view what) {
    return wsync::fail(ErrorCode::kInvalidInput, fmt::format("tensor {}: {}", name, what));
  };
  const auto dtype = wsync::parse_dtype(tensor.dtype);
  if (!dtype)
    return refuse(fmt::format("dtype {} is unknown; use the names of safetensors", tensor.dtype));
  if (tensor.shape_count > wsync::limits::kTensorRank ||
      tensor.range_count > wsync::limits::kRangesPerTensor)
    return refuse(fmt::format("it has {} dimensions and {} ranges, which is too many",
                              tensor.shape_count, tensor.range_count));
  if ((tensor.shape == nullptr && tensor.shape_count != 0) ||
      (tensor.ranges == nullptr && tensor.range_count != 0))
    return refuse("its shape or ranges are NULL");
  wsync::engine::RankTensor out;
  out.description.name = name;
  out.description.dtype = *dtype;
  out.description.shape.assign(tensor.shape, tensor.shape + tensor.shape_count);
  for (std::size_t i = 0; i < tensor.range_count; ++i)
    out.description.ranges.push_back({.dim = tensor.ranges[i].dim,
                                      .begin = tensor.ranges[i].begin,
                                      .length = tensor.ranges[i].length});
  if (auto bytes = wsync::tensor_byte_size(*dtype, out.description.shape); !bytes)
    return refuse(bytes.error().message());
  const auto shard = wsync::reload::Shard::make(wsync::dtype_bits(*dtype), out.description.shape,
                                                out.description.ranges);
  if (!shard) return refuse(shard.error().message());
  if (tensor.destination_dtype != nullptr) {
    out.held_as = wsync::parse_dtype(tensor.destination_dtype);
    if (!out.held_as)
      return refuse(fmt::format("destination_dtype {} is unknown; use the names of safetensors",
                                tensor.destination_dtype));
  }
  if (take == WSYNC_TAKE_PIECES) {
    if (tensor.destination == nullptr && shard->bytes() != 0)
      return refuse("its destination is NULL");
    out.destination = {static_cast<std::byte*>(tensor.destination),
                       wsync::engine::destination_bytes(out, shard->bytes())};
  }
  WSYNC_TRY(wsync::engine::check_cast(out, *take_mode_of(take), weights_on == WSYNC_DEVICE_CUDA));
  return out;
}

// Returns nullptr for weights in host memory.
Result<std::unique_ptr<wsync::device::Device>> device_of(int weights_on, int gpu,
                                                         std::uint32_t index) {
  if (weights_on == WSYNC_DEVICE_HOST) return std::unique_ptr<wsync::device::Device>();
  if (weights_on != WSYNC_DEVICE_CUDA)
    return wsync::fail(ErrorCode::kInvalidInput,
                       fmt::format("weights_on is {}, expected WSYNC_DEVICE_HOST (0) or "
                                   "WSYNC_DEVICE_CUDA (1)",
                                   weights_on));
  if (gpu < 0)
    return wsync::fail(ErrorCode::kInvalidInput,
                       fmt::format("gpu is {}, expected the number of a GPU, from 0 on", gpu));
  return wsync::device::make_device({.kind = wsync::DeviceKind::kCuda,
                                     .index = wsync::device::DeviceIndex{index},
                                     .gpu = static_cast<std::uint32_t>(gpu)});
}

}  // namespace

struct wsync_engine {
  wsync::HomeProcess home;
  std::unique_ptr<wsync::engine::LedSteps> steps;  // null: the steps are not led
  std::unique_ptr<CallbackEngine> callbacks;
  std::string socket_path;
  wsync_take take = WSYNC_TAKE_PIECES;
  int weights_on = WSYNC_DEVICE_HOST;
  int gpu_number = 0;
  wsync::engine::EngineDescription description;
  std::unique_ptr<wsync::device::Device> gpu;  // outlives the link
  std::unique_ptr<wsync::engine::EngineLink> link;
  std::optional<wsync::engine::StartingRank> starting;
  struct Sentences {
    std::string error;                   // of the last call that failed
    std::string link;                    // copy of the link's, so that its text outlives the call
    wsync::engine::LinkRefusal refusal;  // likewise
  };
  // Of each thread, because steps may be led on another one than that which polls.
  std::map<std::thread::id, Sentences> sentences;
  std::mutex sentences_mutex;

  // The pointer stays valid; only the calling thread uses what it points to.
  Sentences& of_this_thread() {
    const std::lock_guard lock(sentences_mutex);
    return sentences[std::this_thread::get_id()];
  }

  // Runs `body`, a function that returns a Result<>. No exception may leave it, because the caller
  // is C.
  template <class Body>
  int run(Body body) {
    try {
      const Result<> result = body();
      if (result) return 0;
      of_this_thread().error = result.error().message();
    } catch (const std::exception& thrown) {
      of_this_thread().error = thrown.what();
    }
    return -1;
  }
};

namespace {

// Call this before using any other part of the handle: in a forked child, locks may be held by
// threads that do not exist there, so the call would wait forever.
bool is_here(const wsync_engine* engine) { return engine != nullptr && engine->home.is_here(); }
bool is_attached(const wsync_engine* engine) { return is_here(engine) && engine->link; }

Result<> check_led(const wsync_engine& engine) {
  if (engine.steps) return {};
  return wsync::fail(ErrorCode::kInvalidInput,
                     "the steps of this replica are not led; set led_steps in the options of all "
                     "its ranks");
}

Result<std::shared_ptr<const wsync::engine::EngineLayout>> layout_of(const wsync_engine& engine,
                                                                     wsync_version version) {
  auto layout = engine.link->layout(version_of(version));
  if (layout == nullptr)
    return wsync::fail(ErrorCode::kNotFound,
                       fmt::format("version {} is neither staged nor served here",
                                   version_of(version).to_string()));
  return layout;
}

}  // namespace

namespace {

// Returns NULL if there is no memory.
wsync_engine* make_engine(const wsync_engine_options& options,
                          wsync::engine::EngineDescription description) {
  try {
    auto engine = std::make_unique<wsync_engine>();
    if (options.led_steps != 0)
      engine->steps = std::make_unique<wsync::engine::LedSteps>(
          description.replica, description.rank, description.leader, description.serving);
    engine->callbacks = std::make_unique<CallbackEngine>(options, engine->steps.get());
    engine->socket_path = options.socket_path;
    engine->take = options.take;
    engine->weights_on = number_of(options.weights_on);
    engine->gpu_number = options.gpu;
    engine->description = std::move(description);
    return engine.release();
  } catch (const std::exception&) {
    return nullptr;
  }
}

// The sidecar sees a controller as one more rank, which takes no tensor.
wsync_engine* make_controller(const wsync_engine_options& options) {
  return make_engine(options, {.replica = options.replica,
                               .rank = options.world_size,
                               .world_size = options.world_size + 1,
                               .leader = true,
                               .has_controller = true,
                               .device = options.device,
                               .take = wsync::control::TakeMode::kPieces,
                               .serving = options.serving != 0,
                               .tensors = {}});
}

bool is_controller(const wsync_engine& engine) {
  const auto& description = engine.description;
  return description.has_controller && description.rank + 1 == description.world_size;
}

}  // namespace

wsync_engine* wsync_engine_create(const wsync_engine_options* options) {
  // Register at the first handle, not earlier: a program without a handle may pass descriptors to
  // processes that it starts.
  wsync::close_descriptors_in_children();
  if (options == nullptr || options->socket_path == nullptr || options->replica == nullptr)
    return nullptr;
  if (options->led_steps == 0 &&
      (options->callbacks.pause == nullptr || options->callbacks.resume == nullptr))
    return nullptr;
  const auto take = take_mode_of(number_of(options->take));
  if (!take) return nullptr;
  const bool leader = options->leader != 0;
  const bool has_controller = options->has_controller != 0;
  if (has_controller && leader) return make_controller(*options);
  if (options->callbacks.commit == nullptr ||
      (*take != wsync::control::TakeMode::kPieces && options->callbacks.load_layer == nullptr))
    return nullptr;
  return make_engine(*options, {.replica = options->replica,
                                .rank = options->rank,
                                // The sidecar counts the controller as the last rank.
                                .world_size = options->world_size + (has_controller ? 1U : 0U),
                                .leader = leader,
                                .has_controller = has_controller,
                                .device = options->device,
                                .take = *take,
                                .any_layout = options->any_layout != 0,
                                .takes_changed_layers = options->changed_layers != 0,
                                .serving = options->serving != 0,
                                .tensors = {}});
}

int wsync_engine_add_tensor(wsync_engine* engine, const wsync_tensor* tensor) {
  if (!is_here(engine) || tensor == nullptr) return -1;
  return engine->run([&]() -> Result<> {
    if (engine->link)
      return wsync::fail(
          ErrorCode::kInvalidInput,
          "a tensor cannot be added after wsync_engine_attach; add all tensors before it");
    if (is_controller(*engine))
      return wsync::fail(
          ErrorCode::kInvalidInput,
          "a controller has no weights; add the tensors to the ranks of its replica");
    auto read = WSYNC_TRY(read_tensor_argument(*tensor, engine->take, engine->weights_on));
    engine->description.tensors.push_back(std::move(read));
    return {};
  });
}

int wsync_engine_report_starting(wsync_engine* engine) {
  if (!is_here(engine)) return -1;
  return engine->run([&]() -> Result<> {
    if (engine->link || engine->starting)
      return wsync::fail(ErrorCode::kInvalidInput,
                         engine->link ? "the engine is attached already"
                                      : "the engine has already said that it is starting");
    const auto& who = engine->description;
    auto starting = WSYNC_TRY(wsync::engine::StartingRank::report(engine->socket_path, who.replica,
                                                                  who.rank, who.world_size));
    engine->starting.emplace(std::move(starting));
    return {};
  });
}

int wsync_engine_attach(wsync_engine* engine) {
  if (!is_here(engine)) return -1;
  return engine->run([&]() -> Result<> {
    if (engine->link)
      return wsync::fail(ErrorCode::kInvalidInput, "the engine is attached already");
    auto gpu =
        WSYNC_TRY(device_of(engine->weights_on, engine->gpu_number, engine->description.device));
    auto description = engine->description;
    description.gpu = gpu.get();
    auto link = WSYNC_TRY(wsync::engine::EngineLink::create(
        std::move(description), engine->socket_path, *engine->callbacks));
    engine->gpu = std::move(gpu);
    engine->link = std::move(link);
    if (engine->steps) engine->steps->attach(*engine->link);
    return {};
  });
}

int wsync_engine_suspend(wsync_engine* engine) {
  if (!is_attached(engine)) return -1;
  return engine->run([&]() -> Result<> {
    if (engine->callbacks->runs_here())
      return wsync::fail(
          ErrorCode::kBusy,
          "wsync_engine_suspend was called inside a callback of this engine; call it "
          "when the callback has returned");
    WSYNC_TRY(engine->link->suspend());
    if (engine->steps) engine->steps->handle_stopped();
    // Only for what others are told. A sidecar that does not run knows nothing of this rank anyway.
    const auto& who = engine->description;
    if (auto said = wsync::engine::StartingRank::report(engine->socket_path, who.replica, who.rank,
                                                        who.world_size, true))
      engine->starting.emplace(std::move(*said));
    return {};
  });
}

int wsync_engine_move_tensor(wsync_engine* engine, uint32_t tensor, void* destination) {
  if (!is_attached(engine)) return -1;
  return engine->run(
      [&] { return engine->link->move_destination(tensor, static_cast<std::byte*>(destination)); });
}

int wsync_engine_resume(wsync_engine* engine) {
  if (!is_attached(engine)) return -1;
  return engine->run([&] { return engine->link->resume(); });
}

int wsync_engine_start(wsync_engine* engine) {
  if (!is_attached(engine)) return -1;
  return engine->run([&] { return engine->link->start(); });
}

int wsync_engine_poll(wsync_engine* engine, int timeout_ms) {
  if (!is_attached(engine)) return -1;
  return engine->run([&] { return engine->link->poll(timeout_ms); });
}

int wsync_engine_fd(const wsync_engine* engine) {
  return is_attached(engine) ? engine->link->fd() : -1;
}

void wsync_engine_report_paused(wsync_engine* engine, uint64_t step) {
  if (!is_attached(engine)) return;
  if (engine->steps) engine->steps->handle_stopped();
  engine->link->report_paused(step);
}

void wsync_engine_report_running(wsync_engine* engine, uint64_t step) {
  if (is_attached(engine)) engine->link->report_running(step);
}

int wsync_engine_lead_step(wsync_engine* engine, wsync_step_header* header) {
  if (!is_here(engine) || header == nullptr) return -1;
  return engine->run([&]() -> Result<> {
    WSYNC_TRY(check_led(*engine));
    *header = c_step_header(WSYNC_TRY(engine->steps->lead()));
    return {};
  });
}

int wsync_engine_follow_step(wsync_engine* engine, const wsync_step_header* header, int* go) {
  if (go != nullptr) *go = 0;
  if (!is_here(engine) || header == nullptr || go == nullptr) return -1;
  return engine->run([&]() -> Result<> {
    WSYNC_TRY(check_led(*engine));
    *go = WSYNC_TRY(engine->steps->follow(step_header_of(*header))) ? 1 : 0;
    return {};
  });
}

void wsync_engine_fail(wsync_engine* engine, const char* sentence) {
  if (is_here(engine)) engine->callbacks->explain(sentence);
}

void wsync_engine_report_loaded(wsync_engine* engine, wsync_version version, int code) {
  if (is_attached(engine))
    engine->link->report_loaded(version_of(version), engine->callbacks->outcome(code, "load"));
}

void wsync_engine_report_committed(wsync_engine* engine, wsync_version version, int code) {
  if (is_attached(engine))
    engine->link->report_committed(version_of(version), engine->callbacks->outcome(code, "commit"));
}

int wsync_engine_tensor_count(wsync_engine* engine, wsync_version version, uint32_t* count) {
  if (!is_attached(engine) || count == nullptr) return -1;
  return engine->run([&]() -> Result<> {
    const auto layout = WSYNC_TRY(layout_of(*engine, version));
    *count = static_cast<uint32_t>(layout->plan.tensors().size());
    return {};
  });
}

int wsync_engine_tensor_info(wsync_engine* engine, wsync_version version, uint32_t tensor,
                             wsync_tensor_info* info) {
  if (!is_attached(engine) || info == nullptr) return -1;
  return engine->run([&]() -> Result<> {
    const auto layout = WSYNC_TRY(layout_of(*engine, version));
    const std::size_t count = layout->plan.tensors().size();
    if (tensor >= count)
      return wsync::fail(ErrorCode::kInvalidInput,
                         fmt::format("version {} has {} tensors for this rank, so number {} does "
                                     "not exist",
                                     version_of(version).to_string(), count, tensor));
    // The layout is held by the link for as long as the header promises these pointers.
    const wsync::control::EngineTensor& described =
        engine->description.any_layout ? layout->tensors[tensor]
                                       : engine->description.tensors[tensor].description;
    *info = {.name = described.name.c_str(),
             .dtype = wsync::dtype_name(described.dtype).data(),
             .shape = described.shape.data(),
             .shape_count = described.shape.size(),
             .bytes = layout->plan.tensors()[tensor].shard.bytes()};
    return {};
  });
}

wsync_engine_state wsync_engine_status(const wsync_engine* engine) {
  if (!is_attached(engine)) return {};
  const auto status = engine->link->status();
  return {.attached = status.attached ? 1 : 0,
          .state = c_rank_state(status.state),
          .active = c_version(status.active),
          .refusals = status.refusals};
}

int wsync_engine_refusal(wsync_engine* engine, wsync_refusal* refusal) {
  if (!is_attached(engine) || refusal == nullptr) return -1;
  return engine->run([&]() -> Result<> {
    auto& said = engine->of_this_thread().refusal;
    said = engine->link->status().refusal;
    *refusal = {.number = said.number,
                .holds = said.holds ? 1 : 0,
                .sentence = said.sentence.c_str(),
                .problem = {.tensor = said.problem.tensor.c_str(),
                            .expected = said.problem.expected.c_str(),
                            .found = said.problem.found.c_str()}};
    return {};
  });
}

const char* wsync_engine_error(wsync_engine* engine) {
  if (engine == nullptr) return "no engine";
  if (const auto here = engine->home.check("wsync_engine"); !here) {
    thread_local std::string sentence;
    sentence = here.error().message();
    return sentence.c_str();
  }
  wsync_engine::Sentences& said = engine->of_this_thread();
  if (engine->link && said.error.empty()) {
    said.link = engine->link->status().last_error;
    return said.link.c_str();
  }
  return said.error.c_str();
}

void wsync_engine_stop(wsync_engine* engine) {
  if (is_attached(engine)) engine->link->stop();
}

void wsync_engine_destroy(wsync_engine* engine) {
  if (is_here(engine)) delete engine;
}
