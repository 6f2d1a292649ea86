// ReferenceEngine: one rank of a replica as a process would run it. Holds a model's tensors, serves
// led steps that read them, and takes new versions through the engine link.
//
//   link's thread      EngineLink -> ReferenceEngine (load, commit) ---StepGate--- Serving -> steps
//
// Thread: create, start, stop and destruction belong to the owner; the event sink is called from
// the link's and the serving thread, one at a time.
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
#include "inference_side/reference_engine/generator.h"
#include "inference_side/reference_engine/held_model.h"
#include "inference_side/reference_engine/serving.h"
#include "inference_side/reference_engine/step_gate.h"

namespace wsync::engine::reference {

// How an engine generates.
struct GenerationOptions {
  std::string name;  // of the model in requests; empty: the checkpoint's folder
  std::uint64_t cache_bytes = 64ULL << 20U;  // for keys and values, on each rank
  std::uint32_t max_sequences = 64;          // that are computed at once
  std::uint32_t max_step_tokens = 512;       // of one step
  std::uint32_t max_positions = 0;           // of a prompt and its output; 0: as the model has it
  generation::CachePolicy on_switch = generation::CachePolicy::kFlush;
};

struct ReferenceEngineOptions {
  std::string sidecar_socket;  // the sidecar's engine socket, absolute; empty: there is none
  std::string run_directory;   // where the ranks of the replica meet; empty: the socket's directory
  std::string replica;
  std::uint32_t rank = 0;  // 0 leads
  std::uint32_t world_size = 1;
  std::uint32_t device = 0;          // index of the sidecar's device
  std::optional<std::uint32_t> gpu;  // its weights are on this GPU, as this process numbers them
  std::string checkpoint;            // names, dtypes and shapes of the model
  bool load_weights = false;         // serve the checkpoint's weights until a version comes
  control::TakeMode take = control::TakeMode::kPieces;
  std::chrono::microseconds step_interval{2'000};  // of an engine that does not generate
  std::optional<GenerationOptions> generation;     // it generates
};

// Something that happened, for people and tests. Names and fields:
//
//   placed     device, gpu, bytes       its weights are on that GPU (UUID), and take so much of it
//   together   ranks                    leader: every rank of the replica is there
//   attached                            the sidecar has welcomed this rank
//   prepared   version                  it can be loaded
//   running    step                     serves, beginning with that step
//   paused     step, why                has left off serving after that step
//   loading    version                  its memory begins to change (copying engines)
//   bucket     version, bucket, of      that bucket has been taken (copying engines)
//   layer      version, layer           that layer has come
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

// It has more than 25 methods: it implements every callback that an engine gives to its link.
class ReferenceEngine final : private Engine {
 public:
  // Opens the checkpoint, allocates and touches the memory, reads the weights if asked to, binds
  // the leader's socket. kInvalidInput for options that contradict each other; else the errors of
  // make_device (a GPU), CheckpointDirectory::open, HeldModel::create and EngineLink::create.
  [[nodiscard]] static Result<std::unique_ptr<ReferenceEngine>> create(
      ReferenceEngineOptions options, EventSink sink);
  ~ReferenceEngine() override;

  // Begins to serve and to attach to the sidecar, which need not be there yet.
  void start();
  // Detaches, then ends serving after the step that runs. Idempotent.
  void stop();

  [[nodiscard]] ServingStats stats() const { return serving_->stats(); }
  [[nodiscard]] LinkStatus link_status() const { return link_ ? link_->status() : LinkStatus{}; }
  [[nodiscard]] const HeldModel& model() const noexcept { return *model_; }
  // Leader of a replica that generates; nullptr otherwise.
  [[nodiscard]] generation::GenerationService* service() const noexcept;
  // Sends a `stats` event to the sink.
  void report_stats();

 private:
  ReferenceEngine(ReferenceEngineOptions options, EventSink sink);
  [[nodiscard]] Result<> prepare_model();
  [[nodiscard]] Result<> prepare_work(const CheckpointDirectory& checkpoint);
  [[nodiscard]] Result<> prepare_link();
  [[nodiscard]] Result<> prepare_serving();
  [[nodiscard]] Generator::State state() const;
  void say(std::string name, std::vector<std::pair<std::string, EngineEvent::Value>> fields = {});

  Result<> pause(PauseMode mode, std::uint32_t deadline_ms) override;
  Result<> load_begin(const Version& version) override;
  Result<> load_layer(const Version& version, std::uint32_t layer,
                      std::span<const LayerTensor> tensors) override;
  Result<> commit(const Version& version) override;
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
  Generator* generator_ = nullptr;  // work_, of an engine that generates
  std::unique_ptr<Serving> serving_;
  std::unique_ptr<EngineLink> link_;  // none without a sidecar
  bool started_ = false;
};

}  // namespace wsync::engine::reference
