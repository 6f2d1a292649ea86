// ReferenceEngine: one rank of a replica, as a process would run it. It holds a model's tensors,
// serves steps that read them, and loads new versions through the engine link.
//
//   link's thread      EngineLink -> ReferenceEngine (load, commit) ---StepGate--- Serving -> steps
//
// Thread: create, start, stop and destruction belong to the owner. The event sink is called from
// the link's thread and the serving thread, never from both at once.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "inference_side/engine_link/engine.h"
#include "inference_side/engine_link/engine_link.h"
#include "inference_side/engine_link/starting_rank.h"
#include "inference_side/reference_engine/generator.h"
#include "inference_side/reference_engine/held_model.h"
#include "inference_side/reference_engine/serving.h"
#include "inference_side/reference_engine/step_gate.h"

namespace wsync::engine::reference {

// Options of an engine that generates.
struct GenerationOptions {
  std::string name;  // model name in requests; empty: the checkpoint's folder
  std::uint64_t cache_bytes = 64ULL << 20U;  // size of the key/value cache of each rank
  std::uint32_t max_sequences = 64;          // sequences computed at the same time, at most
  std::uint32_t max_step_tokens = 512;       // tokens in one step, at most
  // Tokens of a prompt and its output, at most; 0: the model's own limit.
  std::uint32_t max_positions = 0;
  generation::CachePolicy on_switch = generation::CachePolicy::kFlush;
};

struct ReferenceEngineOptions {
  std::string sidecar_socket;  // absolute path of the sidecar's engine socket; empty: no sidecar
  std::string run_directory;   // where the ranks of the replica meet; empty: the socket's directory
  std::string replica;
  std::uint32_t rank = 0;  // 0 is the leader
  std::uint32_t world_size = 1;
  std::uint32_t device = 0;          // index of the sidecar's device
  std::optional<std::uint32_t> gpu;  // GPU that holds the weights, as this process numbers GPUs
  std::string checkpoint;            // gives the names, dtypes and shapes of the model
  bool load_weights = false;         // serve the checkpoint's weights until a version arrives
  control::TakeMode take = control::TakeMode::kPieces;
  std::chrono::microseconds step_interval{2'000};  // for an engine that does not generate
  std::optional<GenerationOptions> generation;     // present if the engine generates
};

// An event for operators and tests. Names and fields:
//
//   placed     device, gpu, bytes       the weights are on that GPU (UUID) and use that many bytes
//   of it
//   together   ranks                    leader: all ranks of the replica are connected
//   attached                            the sidecar has accepted this rank
//   prepared   version                  the version can be loaded
//   running    step                     serving begins with that step
//   paused     step, why                serving stopped after that step
//   loading    version                  the weight memory begins to change (copying engines)
//   bucket     version, bucket, of      the bucket has been copied (copying engines)
//   layer      version, layer           the layer is complete
//   loaded     version, bytes
//   committed  version
//   resumed                             leader: asked to serve
//   torn       step, why
//   stats      steps, versions, torn, aborted, broken, last_step, last_total, state, active
struct EngineEvent {
  using Value = std::variant<std::uint64_t, std::string>;
  std::string name;
  std::vector<std::pair<std::string, Value>> fields;
};
using EventSink = std::function<void(const EngineEvent&)>;

// This class has more than 25 methods because it implements every callback that an engine gives to
// its link.
class ReferenceEngine final : private Engine {
 public:
  // Opens the checkpoint, allocates and touches the memory, reads the weights if requested, and
  // binds the leader's socket. Returns kInvalidInput for options that contradict each other;
  // otherwise the errors of make_device (for a GPU), CheckpointDirectory::open, HeldModel::create
  // and EngineLink::create.
  [[nodiscard]] static Result<std::unique_ptr<ReferenceEngine>> create(
      ReferenceEngineOptions options, EventSink sink);
  ~ReferenceEngine() override;

  // Starts serving and connects to the sidecar. The sidecar may start later.
  void start();
  // Detaches from the sidecar, then stops serving after the current step. Idempotent.
  void stop();

  [[nodiscard]] ServingStats stats() const { return serving_->stats(); }
  [[nodiscard]] LinkStatus link_status() const { return link_ ? link_->status() : LinkStatus{}; }
  [[nodiscard]] const HeldModel& model() const noexcept { return *model_; }
  // The generation service of the leader of a replica that generates; otherwise nullptr.
  [[nodiscard]] generation::GenerationService* service() const noexcept;
  // Sends a `stats` event to the sink.
  void report_stats();

 private:
  ReferenceEngine(ReferenceEngineOptions options, EventSink sink);
  void report_starting();
  [[nodiscard]] Result<> prepare_model();
  [[nodiscard]] Result<> prepare_work(const CheckpointDirectory& checkpoint);
  [[nodiscard]] Result<> prepare_link();
  [[nodiscard]] Result<> prepare_serving();
  [[nodiscard]] Generator::State state() const;
  void say(std::string name, std::vector<std::pair<std::string, EngineEvent::Value>> fields = {});

  Result<> pause(const PauseRequest& request) override;
  Result<> load_begin(const Version& version) override;
  Result<Answer> load_layer(const Version& version, std::uint32_t layer,
                            std::span<const LayerTensor> tensors) override;
  Result<Answer> commit(const Version& version) override;
  Result<> resume() override;
  Result<> read_tensor(std::uint32_t tensor, std::uint64_t offset,
                       std::span<std::byte> out) override;
  void on_attached() override;
  void on_prepared(const Version& version) override;
  void on_bucket(const Version& version, std::uint64_t bucket, std::uint64_t of) override;
  void on_loaded(const Version& version, std::uint64_t bytes) override;

  const ReferenceEngineOptions options_;
  std::mutex sink_mutex_;
  const EventSink sink_;
  std::unique_ptr<device::Device> gpu_;  // null: the weights are in host memory
  std::unique_ptr<HeldModel> model_;
  StepGate gate_;
  std::unique_ptr<StepWork> work_;
  Generator* generator_ = nullptr;  // points to work_ if the engine generates
  std::unique_ptr<Serving> serving_;
  std::optional<StartingRank> starting_;  // until this engine ends
  std::unique_ptr<EngineLink> link_;      // null without a sidecar
  bool started_ = false;
};

}  // namespace wsync::engine::reference
