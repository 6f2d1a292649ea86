// Generator: the work of a rank that generates. The leader's plans each step (Scheduler), sends the
// batch to the followers, samples from the logits and tells the listeners; a follower's computes
// what it is sent.
//
// Thread: the methods of StepWork belong to the serving thread, those of GenerationService to any.
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
  std::string model;  // its name in requests
  generation::ShardOptions shard;
  generation::SchedulerOptions scheduler;
  // Keys and values when the weights change under sequences that go on (PauseMode::kKeep), and
  // prefixes that are kept.
  generation::CachePolicy on_switch = generation::CachePolicy::kFlush;
};

class Generator final : public StepWork, public generation::GenerationService {
 public:
  // `model` is borrowed. Errors as ModelShard::create().
  [[nodiscard]] static Result<std::unique_ptr<Generator>> create(GeneratorOptions options,
                                                                 const Manifest& manifest,
                                                                 const HeldModel& model);
  ~Generator() override;

  // Before the first step: how to make the serving thread ask due() again. And on the leader, what
  // state_of() tells: whether steps are run, and otherwise why not.
  struct State {
    bool has_weights = false;
    bool serving = false;
    Version version;
    std::string why;
  };
  void connect(std::function<void()> wake, std::function<State()> state_of);
  // The weights are another version's from now on; no step runs. Any thread.
  void weights_changed();
  // No request is taken any more; those that are there end with kAbort. Any thread.
  void close();
  // Digest of what the ranks of a replica have to have in common.
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
  // The next ones: under mutex_.
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
  generation::Batch batch_;    // of the step that runs; serving thread
  std::vector<float> logits_;  // the same

  mutable std::mutex mutex_;         // guards what follows
  std::condition_variable changed_;  // a step has ended, or a request
  generation::Scheduler scheduler_;
  std::map<generation::RequestId, generation::Listener> listeners_;
  bool in_step_ = false;  // a step runs
  bool planned_ = false;  // of it: plan() gave something, so take() or drop() follows
  bool closed_ = false;
  bool paused_ = false;             // by a client: no step
  std::uint32_t client_waits_ = 0;  // pauses that wait: nothing new begins
  std::uint64_t resumes_ = 0;       // by clients
  bool switch_holds_ = false;       // by a switch that waits: the same
};

}  // namespace wsync::engine::reference
