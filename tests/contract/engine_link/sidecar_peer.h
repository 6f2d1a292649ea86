// The sidecar's end of the engine link, for tests: real frames over a real Unix socket, real sealed
// arenas.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <gtest/gtest.h>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "inference_side/engine_link/engine.h"
#include "inference_side/reload/load_plan.h"
#include "shared/base/shared_memory.h"
#include "shared/base/unix_socket.h"
#include "shared/base/weight_limits.h"
#include "shared/control/link.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/content_digest.h"
#include "shared/weights/manifest.h"
#include "tests/support/bytes.h"

namespace wsync::engine::test {

inline constexpr Version kFirst{.epoch = 1, .step = 1};
inline constexpr Version kSecond{.epoch = 1, .step = 2};

inline TimePoint soon() { return now() + std::chrono::seconds(20); }

// A model of a few tensors, one larger than a bucket, with random bytes for each version.
struct Model {
  Manifest manifest;
  BucketPlan plan;

  static Model make() {
    std::vector<TensorInfo> tensors;
    tensors.push_back(
        {.name = "model.embed_tokens.weight", .dtype = DType::kBF16, .shape = {1200, 512}});
    for (int layer = 0; layer < 3; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      tensors.push_back(
          {.name = prefix + "self_attn.q_proj.weight", .dtype = DType::kBF16, .shape = {256, 512}});
      tensors.push_back(
          {.name = prefix + "mlp.down_proj.weight", .dtype = DType::kF32, .shape = {128, 192}});
      tensors.push_back(
          {.name = prefix + "input_layernorm.weight", .dtype = DType::kBF16, .shape = {512}});
    }
    tensors.push_back({.name = "model.norm.weight", .dtype = DType::kF32, .shape = {0}});
    return of(std::move(tensors));
  }
  static Model of(std::vector<TensorInfo> tensors) {
    Model model;
    model.manifest = Manifest::create(std::move(tensors)).value();
    model.plan = BucketPlan::create(model.manifest, limits::kBucketBytesMin).value();
    return model;
  }

  // An arena that holds `version`: bytes that depend on it.
  [[nodiscard]] SharedArena arena(Version version) const {
    auto made =
        SharedArena::create({.name = "test", .data_bytes = plan.arena_bytes(), .threads = 1})
            .value();
    fill(made, version);
    return made;
  }
  void fill(SharedArena& into, Version version) const {
    auto lease = into.try_write_lease({.version_epoch = version.epoch,
                                       .version_step = version.step,
                                       .layout = manifest.layout_digest(),
                                       .bucket_bytes = plan.bucket_bytes()});
    ASSERT_TRUE(lease) << lease.error().message();
    std::mt19937_64 random(version.step * 7919 + version.epoch);
    fill_random(random, lease->data());
    std::move(*lease).complete({.low = version.step, .high = 1});
  }
};

// Records what the link asks of an engine; holds its tensors in vectors.
class FakeEngine : public Engine {
 public:
  // Dimension 0 is halved for rank 0 of 2 ("q_proj"), dimension 1 for "down_proj".
  FakeEngine(const Model& model, control::TakeMode take, std::uint32_t rank, std::uint32_t world) {
    description.replica = "r0";
    description.rank = rank;
    description.world_size = world;
    description.leader = rank == 0;
    description.take = take;
    memory.resize(model.manifest.size());
    for (std::size_t i = 0; i < model.manifest.size(); ++i) {
      const TensorInfo& info = model.manifest.tensor(i);
      RankTensor tensor;
      tensor.description = {.name = info.name, .dtype = info.dtype, .shape = info.shape};
      const auto dim =
          info.name.find("q_proj") != std::string::npos      ? std::optional<std::uint32_t>(0)
          : info.name.find("down_proj") != std::string::npos ? std::optional<std::uint32_t>(1)
                                                             : std::nullopt;
      if (world > 1 && dim) {
        const std::uint64_t part = info.shape[*dim] / world;
        tensor.description.ranges = {{.dim = *dim, .begin = rank * part, .length = part}};
      }
      const auto shard =
          reload::Shard::make(dtype_bits(info.dtype), info.shape, tensor.description.ranges)
              .value();
      memory[i].resize(shard.bytes());
      if (take == control::TakeMode::kPieces) tensor.destination = memory[i];
      description.tensors.push_back(std::move(tensor));
    }
    adopted.resize(memory.size());
  }

  Result<> pause(const PauseRequest&) override {
    note("pause");
    return on_pause ? on_pause() : Result<>{};
  }
  Result<> check_version(const Version& version) override {
    note("check " + version.to_string());
    if (!unfit.empty()) return fail(ErrorCode::kRefused, unfit);
    return {};
  }
  Result<> load_begin(const Version& version) override {
    note("begin " + version.to_string());
    if (fail_begin) return fail(ErrorCode::kIo, "not now");
    return {};
  }
  Result<Answer> load_layer(const Version&, std::uint32_t layer,
                            std::span<const LayerTensor> tensors) override {
    note("layer " + std::to_string(layer));
    for (const LayerTensor& tensor : tensors) {
      if (description.take == control::TakeMode::kWhole)
        memory[tensor.tensor].assign(tensor.bytes.begin(), tensor.bytes.end());
      if (control::maps_version(description.take)) adopted[tensor.tensor] = tensor.bytes;
    }
    if (on_layer) on_layer();
    if (fail_layer == layer) return fail(ErrorCode::kIo, "no room for this layer");
    return late_layers.contains(layer) ? Answer::kLater : Answer::kNow;
  }
  Result<Answer> commit(const Version& version) override {
    note("commit " + version.to_string());
    // The last moment at which borrowed bytes may be read.
    if (description.take == control::TakeMode::kBorrow)
      for (std::size_t t = 0; t < adopted.size(); ++t)  // of the layers that were given
        if (const auto given = std::exchange(adopted[t], {}); !given.empty())
          memory[t].assign(given.begin(), given.end());
    return late_commit ? Answer::kLater : Answer::kNow;
  }
  Result<> resume() override {
    note("resume");
    return on_resume ? on_resume() : Result<>{};
  }
  Result<> read_tensor(std::uint32_t tensor, std::uint64_t offset,
                       std::span<std::byte> out) override {
    ++reads;
    if (const std::lock_guard lock(calls_mutex); !fail_read.empty())
      return fail(ErrorCode::kIo, fail_read);
    std::copy_n(memory[tensor].begin() + static_cast<std::ptrdiff_t>(offset), out.size(),
                out.begin());
    if (on_read) on_read(tensor);
    return {};
  }
  [[nodiscard]] std::string why_unreadable() const override { return unreadable; }
  // While it is being asked for its bytes. Empty: it returns them.
  void fail_reads(std::string why) {
    const std::lock_guard lock(calls_mutex);
    fail_read = std::move(why);
  }
  void on_bucket(const Version&, std::uint64_t, std::uint64_t) override {
    if (after_copy) after_copy();
  }
  // The bytes it would serve from.
  [[nodiscard]] std::span<const std::byte> held(std::size_t tensor) const {
    return description.take == control::TakeMode::kAdopt
               ? adopted[tensor]
               : std::span<const std::byte>(memory[tensor]);
  }

  EngineDescription description;
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::span<const std::byte>> adopted;
  void note(std::string call) {
    const std::lock_guard lock(calls_mutex);
    calls.push_back(std::move(call));
  }
  // What it was called for until now, also while the link has something to do.
  [[nodiscard]] std::vector<std::string> calls_until_now() const {
    const std::lock_guard lock(calls_mutex);
    return calls;
  }

  std::vector<std::string> calls;  // read it only while the link has nothing to do
  mutable std::mutex calls_mutex;
  std::function<Result<>()> on_pause;
  std::function<Result<>()> on_resume;
  std::function<void(std::uint32_t tensor)> on_read;  // a part of it has been read
  std::function<void()> after_copy;                   // of each bucket; in the link's thread
  std::function<void()> on_layer;                     // a layer is passed to the engine
  bool fail_begin = false;
  std::uint32_t fail_layer = UINT32_MAX;
  std::set<std::uint32_t> late_layers;  // answered with Answer::kLater
  bool late_commit = false;
  std::string unfit;       // why check_version() refuses every version; empty: it does not
  std::string unreadable;  // as why_unreadable()
  std::string fail_read;   // protected by calls_mutex
  std::atomic<std::uint64_t> reads{};  // calls of read_tensor()
};

// One connection of one rank, driven by the test.
class SidecarPeer {
 public:
  SidecarPeer() {
    std::string pattern = (std::filesystem::temp_directory_path() / "wsync-engine-XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
    listener_.emplace(ListeningSocket::bind(directory_ + "/engine.sock").value());
  }
  ~SidecarPeer() {
    link_.reset();
    listener_.reset();
    std::filesystem::remove_all(directory_);
  }
  [[nodiscard]] std::string path() const { return directory_ + "/engine.sock"; }

  // Waits for the rank and its hello. It may say on another connection first that it starts.
  control::EngineHello accept() {
    connect();
    auto first = link_->receive(soon());
    if (!first) {
      ADD_FAILURE() << "expected EngineHello: " << first.error().message();
      return {};
    }
    if (const auto* hello = std::get_if<control::EngineHello>(&first->message)) {
      last_envelope = first->envelope;
      return *hello;
    }
    EXPECT_TRUE(std::holds_alternative<control::EngineStarting>(first->message));
    starting_ = std::move(link_);
    connect();
    return expect<control::EngineHello>();
  }
  void connect() { link_.emplace(std::move(listener_->accept(soon()).value().socket)); }
  void hang_up() { link_.reset(); }
  void welcome_unified() { send(control::EngineWelcome{.generation = 1}); }

  void send(control::Message message, std::vector<UniqueFd> fds = {}) {
    ++envelope.request;
    const auto sent = link_->send(envelope, message, std::move(fds), soon());
    ASSERT_TRUE(sent) << sent.error().message();
  }
  // The next message, which must be a T and echo the last request.
  template <class T>
  T expect() {
    auto frame = link_->receive(soon());
    if (!frame) {
      ADD_FAILURE() << "expected " << control::message_name(T::kType) << ": "
                    << frame.error().message();
      return {};
    }
    last_envelope = frame->envelope;
    if (const T* message = std::get_if<T>(&frame->message)) return *message;
    ADD_FAILURE() << "expected " << control::message_name(T::kType) << ", found "
                  << control::message_name(control::type_of(frame->message));
    return {};
  }
  template <class T>
  T ask(control::Message message, std::vector<UniqueFd> fds = {}) {
    send(std::move(message), std::move(fds));
    T reply = expect<T>();
    EXPECT_EQ(last_envelope.request, envelope.request);
    return reply;
  }
  // Waits until the rank has closed the connection.
  void expect_closed() {
    auto frame = link_->receive(soon());
    while (frame) frame = link_->receive(soon());
    EXPECT_EQ(frame.error().code(), ErrorCode::kPeerLost) << frame.error().message();
  }
  [[nodiscard]] int socket() const { return link_->fd(); }

  control::Envelope envelope{.fence = {.epoch = 3, .run_id = {1, 2}}, .replica = "r0"};
  control::Envelope last_envelope;

 private:
  std::string directory_;
  std::optional<ListeningSocket> listener_;
  std::optional<control::Link> link_;
  std::optional<control::Link> starting_;  // on which the rank has said that it starts
};

inline reload::LoadPlan plan_of(const Model& model, const FakeEngine& engine) {
  std::vector<control::EngineTensor> tensors;
  for (const auto& tensor : engine.description.tensors) tensors.push_back(tensor.description);
  return reload::LoadPlan::make(model.manifest, model.plan, tensors).value();
}

inline control::Prepare prepare_of(const Model& model, Version version, bool with_layout = true) {
  ByteWriter layout;
  if (with_layout) model.manifest.encode(layout);
  return {.version = version,
          .layout_digest = model.manifest.layout_digest(),
          .layout = std::move(layout).take(),
          .bucket_bytes = model.plan.bucket_bytes(),
          .arena_bytes = model.plan.arena_bytes(),
          .is_verified = true};
}

inline std::vector<UniqueFd> share(const SharedArena& arena) {
  std::vector<UniqueFd> fds;
  fds.push_back(arena.share().value());
  return fds;
}

}  // namespace wsync::engine::test
