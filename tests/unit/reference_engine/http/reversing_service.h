// A generation service on a pure function: the tokens of a prompt, the last one first and over and
// over, each moved on by the seed. One token of every running request in a step, on its own thread.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "inference_side/reference_engine/generation/service.h"
#include "shared/base/format.h"

namespace wsync::engine::http::test {

// What is generated at place `index`.
[[nodiscard]] inline generation::GeneratedToken reversed_token(const generation::Request& request,
                                                               std::uint32_t vocabulary,
                                                               std::size_t index,
                                                               const Version& version) {
  const std::size_t length = request.prompt.size();
  const auto token = static_cast<generation::Token>(
      (request.prompt[length - 1 - index % length] + request.sampling.seed.value_or(0)) %
      vocabulary);
  return {.token = token,
          .logprob = -0.5F * static_cast<float>(index + 1),
          .version = version,
          .most_likely = {}};
}

class ReversingService final : public generation::GenerationService {
 public:
  struct Options {
    generation::ServiceInfo info;
    std::size_t capacity = 4096;  // requests; more are refused
    bool deaf = false;            // requests that are aborted go on
  };
  struct PauseSeen {
    PauseMode mode;
    bool clear_cache;
    std::chrono::milliseconds deadline;
  };

  explicit ReversingService(Options options)
      : options_(std::move(options)), thread_([this] { run(); }) {}
  ~ReversingService() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  ReversingService(const ReversingService&) = delete;
  ReversingService& operator=(const ReversingService&) = delete;

  // From now on only as many steps are run as allow() says.
  void hold() {
    change([&] { steps_left_ = 0; });
  }
  void allow(std::uint64_t steps) {
    change([&] { *steps_left_ += steps; });
  }
  void change_info(const std::function<void(generation::ServiceInfo&)>& edit) {
    change([&] { edit(options_.info); });
  }
  // Waits until that many were submitted, cancelled, or tokens generated, since the beginning.
  void wait_submitted(std::uint64_t count) {
    wait([&] { return submitted_ >= count; });
  }
  void wait_cancelled(std::uint64_t count) {
    wait([&] { return cancelled_ >= count; });
  }
  void wait_generated(std::uint64_t count) {
    wait([&] { return stats_.generated_tokens >= count; });
  }
  void wait_pausing() {
    wait([&] { return pause_seen_.has_value(); });
  }
  [[nodiscard]] std::optional<PauseSeen> pause_seen() {
    const std::lock_guard lock(mutex_);
    return pause_seen_;
  }

  Result<generation::RequestId> submit(generation::Request request,
                                       generation::Listener listener) override {
    const std::lock_guard lock(mutex_);
    if (requests_.size() >= options_.capacity)
      return fail(ErrorCode::kResourceExhausted,
                  fmt::format("{} wait already; try again later", requests_.size()));
    const generation::RequestId id = next_id_++;
    stats_.prompt_tokens += request.prompt.size();
    requests_.emplace(id, Running{.request = std::move(request), .listener = std::move(listener)});
    ++submitted_;
    changed_.notify_all();
    return id;
  }
  void cancel(generation::RequestId id) override {
    change([&] { cancelled_ += requests_.erase(id); });
  }
  Result<> pause(PauseMode mode, bool clear_cache, std::chrono::milliseconds deadline) override {
    std::unique_lock lock(mutex_);
    pause_seen_ = {.mode = mode, .clear_cache = clear_cache, .deadline = deadline};
    if (mode == PauseMode::kAbort)
      for (auto& [id, running] : requests_) running.aborted = true;
    if (mode == PauseMode::kKeep) options_.info.paused = true;
    holds_back_ = true;
    changed_.notify_all();
    const auto done = [&] { return mode == PauseMode::kKeep || running_count() == 0; };
    if (!changed_.wait_for(lock, deadline, done)) {
      holds_back_ = false;
      changed_.notify_all();
      return fail(ErrorCode::kDeadline, counted(running_count(), "request") + " still running");
    }
    options_.info.paused = true;
    return {};
  }
  void resume() override {
    change([&] { options_.info.paused = holds_back_ = false; });
  }
  void abort(const std::vector<generation::RequestId>& ids) override {
    change([&] {
      for (auto& [id, running] : requests_)
        running.aborted =
            running.aborted || ids.empty() || std::find(ids.begin(), ids.end(), id) != ids.end();
    });
  }
  bool reset_prefix_cache() override {
    const std::lock_guard lock(mutex_);
    return requests_.empty();
  }
  generation::ServiceInfo info() const override {
    const std::lock_guard lock(mutex_);
    generation::ServiceInfo info = options_.info;
    info.serving = info.has_weights && !info.paused;
    info.not_serving = info.paused ? "a client has paused it" : "it has no weights yet";
    return info;
  }
  generation::SchedulerStats stats() const override {
    const std::lock_guard lock(mutex_);
    generation::SchedulerStats stats = stats_;
    stats.running = requests_.size();
    return stats;
  }

 private:
  struct Running {
    generation::Request request;
    generation::Listener listener;
    std::size_t generated = 0;
    bool begun = false;
    bool aborted = false;
  };

  template <class Change>
  void change(const Change& apply) {
    {
      const std::lock_guard lock(mutex_);
      apply();
    }
    changed_.notify_all();
  }
  template <class Condition>
  void wait(const Condition& condition) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, condition);
  }
  // What a pause waits for.
  [[nodiscard]] std::size_t running_count() const {
    return static_cast<std::size_t>(std::count_if(
        requests_.begin(), requests_.end(),
        [](const auto& entry) { return entry.second.begun || entry.second.aborted; }));
  }
  [[nodiscard]] bool can_step() const {
    if (options_.info.paused || !options_.info.has_weights || steps_left_ == 0U) return false;
    return std::any_of(requests_.begin(), requests_.end(),
                       [&](const auto& entry) { return entry.second.begun || !holds_back_; });
  }
  [[nodiscard]] bool must_abort() const {
    return !options_.deaf && std::any_of(requests_.begin(), requests_.end(),
                                         [](const auto& entry) { return entry.second.aborted; });
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ending_ || can_step() || must_abort(); });
      if (ending_) return;
      if (must_abort())
        end_aborted();
      else
        step();
      changed_.notify_all();
    }
  }
  void end_aborted() {
    end_those([](Running& running) {
      if (running.aborted)
        running.listener({.tokens = {}, .finished = generation::FinishReason::kAbort});
      return running.aborted;
    });
  }
  void step() {
    if (steps_left_) --*steps_left_;
    end_those([this](Running& running) { return generate(running); });
  }
  template <class Ends>
  void end_those(const Ends& ends) {
    for (auto entry = requests_.begin(); entry != requests_.end();)
      entry = ends(entry->second) ? requests_.erase(entry) : std::next(entry);
  }
  // True when it has ended.
  bool generate(Running& running) {
    if (!running.begun && holds_back_) return false;
    running.begun = true;
    generation::Delivery delivery;
    delivery.tokens.push_back(reversed_token(running.request, options_.info.vocabulary,
                                             running.generated, options_.info.version));
    ++stats_.generated_tokens;
    if (generation::ends(running.request, delivery.tokens.back().token))
      delivery.finished = generation::FinishReason::kStop;
    else if (++running.generated == running.request.max_tokens)
      delivery.finished = generation::FinishReason::kLength;
    const bool ended = delivery.finished.has_value();
    running.listener(std::move(delivery));
    return ended;
  }

  mutable std::mutex mutex_;  // listeners are called under it, so cancel() is the end of them
  std::condition_variable changed_;
  Options options_;
  std::map<generation::RequestId, Running> requests_;
  generation::RequestId next_id_ = 1;
  std::optional<std::uint64_t> steps_left_;
  bool holds_back_ = false;
  bool ending_ = false;
  std::uint64_t submitted_ = 0;
  std::uint64_t cancelled_ = 0;
  std::optional<PauseSeen> pause_seen_;
  generation::SchedulerStats stats_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace wsync::engine::http::test
