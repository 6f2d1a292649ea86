#include "trainer_side/rollout/rollout_pool.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/config/limits.h"
#include "shared/weights/json_text.h"
#include "trainer_side/rollout/completion_client.h"
#include "trainer_side/training/random.h"

namespace wsync::rollout {
namespace {

// The position of a problem: step, then group of the step.
using Ticket = std::pair<std::uint64_t, std::uint32_t>;

struct Replica {
  TimePoint not_before{};             // time of the next request after a failure
  std::optional<std::uint64_t> step;  // newest step that it is known to serve
  bool looking = false;               // a thread is requesting its version
  TimePoint look_again{};
  std::string holds_up;  // why it gets no requests, in one sentence; empty if it may
};

// The next action of a thread for its replica.
struct Todo {
  enum class What : std::uint8_t { kWait, kLook, kAsk };
  What what = What::kWait;
  std::optional<TimePoint> until = std::nullopt;  // end of kWait; absent: wait for a change
};

// The result has 62 bits: engines add the index of an answer to it, and some accept only 63 bits.
std::uint64_t sampling_seed(std::uint64_t seed, std::uint64_t number) {
  using training::Random;
  return Random(Random(~seed).next() ^ number).next() >> 2U;
}

tl::unexpected<Error> wrong_option(std::string_view name, std::string_view found,
                                   std::string_view expected) {
  return fail(ErrorCode::kInvalidInput,
              fmt::format("{}: expected {}, found {}", name, expected, found));
}

Result<> check_number(std::string_view name, std::uint64_t found, std::uint64_t min,
                      std::uint64_t max) {
  if (found >= min && found <= max) return {};
  return wrong_option(name, std::to_string(found), fmt::format("{} to {}", min, max));
}

Result<> check_time(std::string_view name, std::chrono::milliseconds found) {
  if (found.count() >= 1 && found.count() <= config::kDurationMsMax) return {};
  return wrong_option(name, fmt::format("{} ms", found.count()),
                      fmt::format("1 to {} ms", config::kDurationMsMax));
}

Result<> check_options(const PoolOptions& options) {
  WSYNC_TRY(check_number("replicas", options.replicas.size(), 1, kPoolThreads));
  const std::set<std::string> distinct(options.replicas.begin(), options.replicas.end());
  if (distinct.size() != options.replicas.size())
    return wrong_option("replicas", "one of them twice", "each once");
  WSYNC_TRY(check_number("requests", options.requests, 1, kPoolThreads / options.replicas.size()));
  WSYNC_TRY(check_number("groups", options.groups, 1, kPoolGroups));
  WSYNC_TRY(
      check_number("max_staleness", options.max_staleness, 0, kPoolGroups / options.groups - 1));
  WSYNC_TRY(check_number("answers", options.answers, 1, kPoolAnswers));
  WSYNC_TRY(check_number("max_tokens", options.max_tokens, 1, kPoolTokens / options.answers));
  if (!std::isfinite(options.temperature) || options.temperature < 0)
    return wrong_option("temperature", fmt::format("{}", options.temperature),
                        "0 or a finite number above it");
  WSYNC_TRY(check_time("deadline", options.deadline));
  return check_time("retry", options.retry);
}

std::uint64_t newest_step(const Group& group) {
  std::uint64_t newest = 0;
  for (const Rollout& rollout : group.rollouts)
    for (const Span& span : rollout.spans) newest = std::max(newest, span.version.step);
  return newest;
}

std::string text_of(const Rollout& rollout) {
  std::string text;
  for (const std::uint32_t token : rollout.tokens) {
    const char byte = static_cast<char>(token);
    if (byte == kEndOfAnswer) break;
    text += byte;
  }
  return text;
}

// Computes the rewards and advantages of a group. Returns kInternal if `reward` throws, or if its
// result is NaN or too large.
Result<> score(const Reward& reward, Group& group) {
  const auto wrong = [&group](const std::string& what) {
    return fail(ErrorCode::kInternal, fmt::format("the reward function of problem {}: {}",
                                                  quote_text(group.problem.prompt), what));
  };
  std::vector<double> rewards;
  for (Rollout& rollout : group.rollouts) {
    try {
      rollout.reward = reward(group.problem, text_of(rollout));
    } catch (const std::exception& error) {
      return wrong(fmt::format("it threw {}", quote_text(error.what())));
    } catch (...) {
      return wrong("it threw something that is not a std::exception");
    }
    if (!(std::abs(rollout.reward) <= kRewardMax))
      return wrong(fmt::format("expected a number from {} to {}, found {}", -kRewardMax, kRewardMax,
                               rollout.reward));
    rewards.push_back(rollout.reward);
  }
  const std::vector<double> advantages = group_advantages(rewards);
  for (std::size_t i = 0; i < advantages.size(); ++i) group.rollouts[i].advantage = advantages[i];
  return {};
}

}  // namespace

struct RolloutPool::State {
  State(PoolOptions given, Task of, Reward worth)
      : options(std::move(given)), task(of), reward(std::move(worth)) {}
  ~State() {
    cancel();
    threads.clear();
  }

  [[nodiscard]] Result<> start();
  void cancel() noexcept;
  void begin(std::uint64_t step, std::uint32_t epoch);
  [[nodiscard]] Result<RolloutBatch> collect(std::uint64_t step,
                                             std::chrono::milliseconds wait_limit);

  // Called by the pool's threads, with the lock held.
  void work(Replica& replica, CompletionClient& client);
  [[nodiscard]] Todo next_for(const Replica& replica) const;
  void look(Replica& replica, CompletionClient& client, std::unique_lock<std::mutex>& lock);
  void ask(Replica& replica, CompletionClient& client, std::unique_lock<std::mutex>& lock);
  void saw(Replica& replica, const std::string& url, const Version& served);
  void take_in(Replica& replica, const Ticket& ticket, Group group);
  void lost(Replica& replica, const Error& error);
  // Called with the lock held.
  void open(std::uint64_t step);
  [[nodiscard]] std::size_t groups_of(std::uint64_t step) const;
  [[nodiscard]] Error not_in_time(std::uint64_t step, double seconds_waited) const;

  [[nodiscard]] std::uint64_t number_of(const Ticket& ticket) const {
    return ticket.first * options.groups + ticket.second;
  }
  // Returns the oldest step whose weights may generate for `step`.
  [[nodiscard]] std::uint64_t needed_step(std::uint64_t step) const {
    const std::uint64_t age = 1 + std::uint64_t{options.max_staleness};
    return options.versions_count && step > age ? step - age : 0;
  }

  const PoolOptions options;
  const Task task;
  const Reward reward;
  std::vector<std::unique_ptr<CompletionClient>> clients;  // one for each thread

  std::mutex mutex;  // protects the members below
  std::condition_variable changed;
  std::vector<Replica> replicas;
  bool cancelled = false;
  std::uint64_t beginnings = 0;
  std::uint64_t next = 0;  // next step to be collected
  std::uint32_t min_epoch = 0;
  std::set<Ticket> waiting;
  std::map<Ticket, Group> complete;
  std::optional<Error> broken;  // set if the reward function failed
  PoolStats stats;

  std::vector<std::jthread> threads;
};

Result<> RolloutPool::State::start() {
  replicas.resize(options.replicas.size());
  for (const std::string& url : options.replicas) {
    for (std::uint32_t i = 0; i < options.requests; ++i) {
      auto client = CompletionClient::create(url, options.deadline, options.authorization);
      if (!client) return fail(client.error().with_context("replicas"));
      clients.push_back(std::move(*client));
    }
  }
  try {
    for (std::size_t i = 0; i < clients.size(); ++i)
      threads.emplace_back([this, &replica = replicas[i / options.requests],
                            &client = *clients[i]] { work(replica, client); });
  } catch (const std::system_error& error) {
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("cannot start {} for questions: {}; lower requests",
                            counted(clients.size(), "thread"), error.what()));
  }
  return {};
}

void RolloutPool::State::cancel() noexcept {
  {
    const std::lock_guard lock(mutex);
    cancelled = true;
  }
  changed.notify_all();
  for (const auto& client : clients) client->cancel();
}

void RolloutPool::State::open(std::uint64_t step) {
  for (std::uint32_t group = 0; group < options.groups; ++group) waiting.insert({step, group});
}

std::size_t RolloutPool::State::groups_of(std::uint64_t step) const {
  return static_cast<std::size_t>(
      std::distance(complete.lower_bound({step, 0}), complete.lower_bound({step + 1, 0})));
}

void RolloutPool::State::begin(std::uint64_t step, std::uint32_t epoch) {
  const std::lock_guard lock(mutex);
  ++beginnings;
  next = step;
  min_epoch = options.versions_count ? epoch : 0;
  for (Replica& replica : replicas) replica.step.reset();
  waiting.clear();
  complete.clear();
  broken.reset();
  for (std::uint64_t ahead = 0; ahead <= options.max_staleness; ++ahead) open(step + ahead);
  changed.notify_all();
}

Todo RolloutPool::State::next_for(const Replica& replica) const {
  if (waiting.empty() || broken) return {};
  const TimePoint at = now();
  if (at < replica.not_before) return {.until = replica.not_before};
  // The first ticket decides: later steps need the same or newer weights.
  const std::uint64_t needed = needed_step(waiting.begin()->first);
  if ((needed == 0 && min_epoch == 0) || replica.step >= needed) return {.what = Todo::What::kAsk};
  if (replica.looking) return {};
  if (at < replica.look_again) return {.until = replica.look_again};
  return {.what = Todo::What::kLook};
}

void RolloutPool::State::work(Replica& replica, CompletionClient& client) {
  std::unique_lock lock(mutex);
  while (!cancelled) {
    const Todo todo = next_for(replica);
    switch (todo.what) {
      case Todo::What::kWait:
        if (todo.until)
          changed.wait_until(lock, steady_time(*todo.until));
        else
          changed.wait(lock);
        break;
      case Todo::What::kLook:
        look(replica, client, lock);
        break;
      case Todo::What::kAsk:
        ask(replica, client, lock);
        break;
    }
  }
}

void RolloutPool::State::look(Replica& replica, CompletionClient& client,
                              std::unique_lock<std::mutex>& lock) {
  replica.looking = true;
  const std::uint64_t begun_by = beginnings;
  lock.unlock();
  const Result<Version> served = client.served();
  lock.lock();
  replica.looking = false;
  replica.look_again = now() + kVersionLook;
  if (served && begun_by == beginnings) {
    saw(replica, client.url(), *served);
  } else if (!served && served.error().code() == ErrorCode::kBusy) {
    // The replica is switching or has no weights yet. This does not count as a failed request.
    replica.holds_up = served.error().message();
  } else if (!served && !cancelled) {
    lost(replica, served.error());
  }
  changed.notify_all();
}

void RolloutPool::State::saw(Replica& replica, const std::string& url, const Version& served) {
  const std::uint64_t needed = waiting.empty() ? 0 : needed_step(waiting.begin()->first);
  replica.holds_up.clear();
  replica.step.reset();
  if (served.epoch >= min_epoch) replica.step = served.step;
  if (!replica.step)
    replica.holds_up =
        fmt::format("{} serves {} of another run, but weights of epoch {} are needed", url,
                    served.to_string(), min_epoch);
  else if (*replica.step < needed)
    replica.holds_up = fmt::format("{} serves {}, but weights of step {} are needed", url,
                                   served.to_string(), needed);
}

void RolloutPool::State::ask(Replica& replica, CompletionClient& client,
                             std::unique_lock<std::mutex>& lock) {
  const Ticket ticket = *waiting.begin();
  waiting.erase(waiting.begin());
  const std::uint64_t begun_by = beginnings;
  lock.unlock();
  const TimePoint start = now();
  Group group{.problem = task.problem(options.seed, number_of(ticket)), .rollouts = {}};
  auto rollouts = client.ask({.prompt = group.problem.prompt,
                              .answers = options.answers,
                              .max_tokens = options.max_tokens,
                              .temperature = options.temperature,
                              .seed = sampling_seed(options.seed, number_of(ticket))});
  Result<> scored;
  if (rollouts) {
    group.seconds = seconds(now() - start);
    group.rollouts = std::move(*rollouts);
    scored = score(reward, group);
  }
  lock.lock();
  // After another begin() the ticket belongs to the previous range of steps.
  if (cancelled || begun_by != beginnings) return;
  if (!rollouts) {
    waiting.insert(ticket);
    lost(replica, rollouts.error());
  } else if (!scored) {
    broken = scored.error();
  } else {
    take_in(replica, ticket, std::move(group));
  }
  changed.notify_all();
}

void RolloutPool::State::take_in(Replica& replica, const Ticket& ticket, Group group) {
  if (oldest_epoch(group) < min_epoch || oldest_step(group) < needed_step(ticket.first)) {
    ++stats.dropped_stale;
    waiting.insert(ticket);
    replica.step.reset();  // it now serves another version than the known one
    replica.look_again = now() + kVersionLook;
    return;
  }
  replica.step = std::max(replica.step.value_or(0), newest_step(group));
  complete.emplace(ticket, std::move(group));
}

void RolloutPool::State::lost(Replica& replica, const Error& error) {
  ++stats.failed;
  stats.last_failure = error.message();
  replica.holds_up.clear();
  replica.step.reset();
  replica.not_before = now() + options.retry;
}

Error RolloutPool::State::not_in_time(std::uint64_t step, double seconds_waited) const {
  std::string why;
  for (const Replica& replica : replicas)
    if (why.empty()) why = replica.holds_up;
  if (!stats.last_failure.empty())
    why += fmt::format("{}the last failure: {}", why.empty() ? "" : "; ", stats.last_failure);
  if (why.empty())
    why = "no replica has failed; allow the replicas more time, or fewer tokens to generate";
  return {ErrorCode::kDeadline,
          fmt::format("rollouts of step {}: {} of {} were ready after {:.1f} s; {}", step,
                      groups_of(step), counted(options.groups, "group"), seconds_waited, why)};
}

Result<RolloutBatch> RolloutPool::State::collect(std::uint64_t step,
                                                 std::chrono::milliseconds wait_limit) {
  const TimePoint start = now();
  const std::chrono::milliseconds max(config::kDurationMsMax);
  std::unique_lock lock(mutex);
  WSYNC_CHECK(beginnings > 0 && step == next, "steps are harvested one after the other");
  const bool in_time =
      changed.wait_until(lock, steady_time(start + std::min(wait_limit, max)),
                         [&] { return cancelled || broken || groups_of(step) == options.groups; });
  if (cancelled)
    return fail(ErrorCode::kCancelled, fmt::format("rollouts of step {}: cancelled", step));
  if (broken) return fail(*broken);
  const double waited = seconds(now() - start);
  if (!in_time) return fail(not_in_time(step, waited));
  RolloutBatch batch{.groups = {}, .waited_seconds = waited, .stats = std::exchange(stats, {})};
  const auto end = complete.lower_bound({step + 1, 0});
  for (auto entry = complete.begin(); entry != end; entry = complete.erase(entry))
    batch.groups.push_back(std::move(entry->second));
  ++next;
  open(step + 1 + options.max_staleness);
  changed.notify_all();
  return batch;
}

RolloutPool::RolloutPool(std::unique_ptr<State> state) : state_(std::move(state)) {}
RolloutPool::~RolloutPool() = default;

Result<std::unique_ptr<RolloutPool>> RolloutPool::create(PoolOptions options, Task task,
                                                         Reward reward) {
  WSYNC_TRY(check_options(options));
  auto state = std::make_unique<State>(std::move(options), task, std::move(reward));
  WSYNC_TRY(state->start());
  return std::unique_ptr<RolloutPool>(new RolloutPool(std::move(state)));
}

void RolloutPool::begin(std::uint64_t step, std::uint32_t min_epoch) {
  state_->begin(step, min_epoch);
}

Result<RolloutBatch> RolloutPool::collect(std::uint64_t step,
                                          std::chrono::milliseconds wait_limit) {
  return state_->collect(step, wait_limit);
}

void RolloutPool::cancel() noexcept { state_->cancel(); }

}  // namespace wsync::rollout
