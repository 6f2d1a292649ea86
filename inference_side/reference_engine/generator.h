// Generator: the work of one rank that generates. The leader's Generator plans each step with the
// Scheduler, sends the batch to the followers, samples from the logits and notifies the listeners.
// A follower's Generator computes the batches that it receives.
//
// Thread: the methods of StepWork belong to the serving thread. Those of GenerationService may be
// called from any thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "inference_side/reference_engine/generation/model_shard.h"
#include "inference_side/reference_engine/generation/scheduler.h"
#include "inference_side/reference_engine/generation/service.h"
#include "inference_side/reference_engine/held_model.h"
#include "inference_side/reference_engine/step_work.h"

namespace wsync::engine::reference {

struct GeneratorOptions {
  std::string model;  // model name in requests
  generation::ShardOptions shard;
  generation::SchedulerOptions scheduler;
  // What happens to cached keys and values when the weights change while sequences continue
  // (PauseMode::kKeep), and to cached prefixes.
  generation::CachePolicy on_switch = generation::CachePolicy::kFlush;
};

// This class has more than 25 methods: it implements the interfaces of the step loop and of the
// server.
class Generator final : public StepWork, public generation::GenerationService {
 public:
  // `model` is borrowed. Errors as ModelShard::create().
  [[nodiscard]] static Result<std::unique_ptr<Generator>> create(GeneratorOptions options,
                                                                 const Manifest& manifest,
                                                                 const HeldModel& model);
  ~Generator() override;

  // Whether steps run on the leader, and the reason if they do not. connect() must be called before
  // the first step: `wake` makes the serving thread call due() again, `state_of` returns the state.
  struct State {
    bool has_weights = false;
    bool serving = false;
    Version version;
    std::string why;
  };
  void connect(std::function<void()> wake, std::function<State()> state_of);
  // What becomes of keys and values at the switch that begins now: on the leader, whose scheduler
  // decides for all ranks. Any thread.
  void expect_switch(CachePolicy policy);
  // Notifies the scheduler that the weights have a new version. No step may be running. Any thread.
  void weights_changed();
  // Refuses all further requests. The requests that exist end with kAbort. Any thread.
  void close();
  // Digest of the options that must be equal on all ranks of a replica.
  [[nodiscard]] std::uint64_t agreement() const;

  // ---- StepWork ----
  [[nodiscard]] bool due() override;
  [[nodiscard]] bool may_stop(PauseMode mode) override;
  void resumed() override;
  void together() override;
  [[nodiscard]] Result<Reading> run(std::uint64_t step, const Version& version,
                                    const collective::Team& team, TimePoint deadline,
                                    std::string& saw) override;
  void ended(bool done, const Version& version, const Reading& total) override;

  // ---- GenerationService, on the leader ----
  [[nodiscard]] Result<generation::RequestId> submit(generation::Request request,
                                                     generation::Listener listener) override;
  void cancel(generation::RequestId id) override;
  [[nodiscard]] Result<> pause(PauseMode mode, bool clear_cache,
                               std::chrono::milliseconds deadline) override;
  void resume() override;
  void abort(const std::vector<generation::RequestId>& ids) override;
  [[nodiscard]] bool reset_prefix_cache() override;
  [[nodiscard]] generation::ServiceInfo info() const override;
  [[nodiscard]] generation::SchedulerStats stats() const override;

 private:
  Generator(GeneratorOptions options, std::unique_ptr<generation::ModelShard> shard,
            const HeldModel& model);
  [[nodiscard]] Result<generation::Batch> share(const collective::Team& team, TimePoint deadline);
  // Delivers progress to the listeners. The caller holds mutex_.
  void notify(std::vector<generation::Progress> progress);
  void set_admission();
  void wait_for_step_end(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] Result<> drain(std::unique_lock<std::mutex>& lock,
                               std::chrono::milliseconds deadline);

  const GeneratorOptions options_;
  const std::unique_ptr<generation::ModelShard> shard_;
  const HeldModel& model_;
  std::function<void()> wake_;
  std::function<State()> state_of_;
  generation::Batch batch_;    // batch of the current step; serving thread
  std::vector<float> logits_;  // logits of the current step; serving thread

  mutable std::mutex mutex_;  // guards the members below
  // Signalled when a step has ended or a request was added or finished.
  std::condition_variable changed_;
  generation::Scheduler scheduler_;
  std::map<generation::RequestId, generation::Listener> listeners_;
  bool in_step_ = false;  // a step is running
  bool planned_ = false;  // plan() returned a batch for this step, so take() or drop() follows
  bool closed_ = false;
  bool paused_ = false;  // paused by a client: no step runs
  // Number of client pauses that are waiting: no new request begins.
  std::uint32_t client_waits_ = 0;
  std::uint64_t resumes_ = 0;  // number of resumes by clients
  CachePolicy next_switch_ = CachePolicy::kEngine;
  bool switch_holds_ = false;  // a weight switch is waiting: no new request begins
};

}  // namespace wsync::engine::reference
