// Random loads: whatever is admitted, put back, dropped, cancelled, aborted, flushed or kept, every
// request gives what it gives alone, and no step reads what is not there.
#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "inference_side/reference_engine/generation/sampler.h"
#include "inference_side/reference_engine/generation/scheduler.h"
#include "tests/unit/reference_engine/generation/shadow_model.h"

namespace wsync::engine::generation {
namespace {

constexpr std::uint64_t kSeeds = 1000;
constexpr int kTurns = 150;
constexpr int kLastTurns = 5000;  // more than any run needs to come to its end

// What has happened in all runs, so that none of it is missing.
struct Happened {
  std::uint64_t put_back = 0, shared = 0, hits = 0, pieces = 0, dropped = 0, flushed = 0, kept = 0;
  std::uint64_t cancelled = 0, forgotten = 0, queue_full = 0, too_large = 0, many_versions = 0;
  std::uint64_t by_stop = 0, by_end_token = 0, by_length = 0, by_abort = 0;
};

struct Asked {
  Request request;
  std::uint64_t stream = 0;
  std::vector<Token> output;
  Version last;  // of the output's last token
  std::optional<FinishReason> finished;
};

class Load {
 public:
  Load(std::uint64_t seed, Happened& happened)
      : random_(seed),
        happened_(happened),
        options_(random_options()),
        scheduler_(options_),
        model_(options_) {}

  void run() {
    for (int turn = 0; turn < kTurns && !::testing::Test::HasFatalFailure(); ++turn) {
      if (chance(40)) ask();
      happen();
      step();
    }
    scheduler_.admit(true);
    is_admitting_ = true;
    is_asking_ = false;
    for (int turn = 0; !scheduler_.idle() && !::testing::Test::HasFatalFailure(); ++turn) {
      ASSERT_LT(turn, kLastTurns) << "it comes to no end";
      step();
    }
    if (::testing::Test::HasFatalFailure()) return;
    for (const auto& [id, asked] : asked_)
      EXPECT_TRUE(asked.finished) << "request " << id << " was lost";
    const SchedulerStats stats = scheduler_.stats();
    EXPECT_EQ(stats.running + stats.waiting + stats.blocks_used, 0U);
    happened_.put_back += stats.preempted;
    happened_.hits += stats.prefix_hit_tokens;
    happened_.shared += model_.shared();
  }

 private:
  std::uint32_t up_to(std::uint32_t max) {
    return static_cast<std::uint32_t>(random_() % (max + 1));
  }
  bool chance(std::uint32_t percent) { return random_() % 100 < percent; }

  SchedulerOptions random_options() {
    return {.vocabulary = 3 + up_to(7),
            .max_positions = 40,
            .blocks = 4 + up_to(12),
            .block_tokens = 1 + up_to(4),
            .max_step_tokens = 1 + up_to(15),
            .max_sequences = 1 + up_to(6),
            .max_waiting = 6,
            .stream = random_()};
  }

  Request random_request() {
    Request request{.prompt = std::vector<Token>(1 + up_to(19)),
                    .max_tokens = 1 + up_to(14),
                    .sampling = {},
                    .stops = {},
                    .end_token = {}};
    // Many begin with the same tokens.
    const std::uint32_t common = chance(60) ? up_to(19) : 0;
    for (std::uint32_t i = 0; i < request.prompt.size(); ++i)
      request.prompt[i] = (i < common ? i * i : up_to(99)) % options_.vocabulary;
    request.sampling.temperature = chance(30) ? 0 : 0.5 + up_to(3);
    if (chance(40)) request.sampling.top_p = 0.2 * (1 + up_to(3));
    if (chance(40)) request.sampling.seed = up_to(5);
    if (chance(30)) request.end_token = up_to(options_.vocabulary - 1);
    if (chance(30)) request.logprobs = 1 + up_to(2);
    for (std::uint32_t stops = chance(50) ? 1 + up_to(2) : 0; stops > 0; --stops) {
      request.stops.emplace_back(1 + up_to(2));
      for (Token& token : request.stops.back()) token = up_to(options_.vocabulary - 1);
    }
    return request;
  }

  void ask() {
    const Request request = random_request();
    const std::uint64_t positions = request.prompt.size() + request.max_tokens - 1;
    const bool fits = positions <= std::uint64_t{options_.blocks} * options_.block_tokens;
    const bool is_full = scheduler_.stats().waiting >= options_.max_waiting;
    const Result<RequestId> id = scheduler_.add(request);
    ASSERT_EQ(id.has_value(), fits && !is_full);
    if (!id) {
      ASSERT_EQ(id.error().code(), fits ? ErrorCode::kResourceExhausted : ErrorCode::kInvalidInput);
      ++(fits ? happened_.queue_full : happened_.too_large);
      return;
    }
    asked_[*id] = {.request = request,
                   .stream = options_.stream + *id,
                   .output = {},
                   .last = {},
                   .finished = {}};
  }

  RequestId some_request() {
    return asked_.empty()
               ? 1
               : std::next(asked_.begin(), up_to(static_cast<std::uint32_t>(asked_.size() - 1)))
                     ->first;
  }

  // What may happen between two steps.
  void happen() {
    if (chance(3)) {
      const RequestId id = some_request();
      scheduler_.cancel(id);
      if (asked_.contains(id) && !asked_[id].finished) {
        asked_.erase(id);
        ++happened_.cancelled;
      }
    }
    if (chance(3)) {
      const RequestId id = some_request();
      const bool is_there = asked_.contains(id) && !asked_[id].finished;
      const std::optional<Progress> ended = scheduler_.abort(id);
      ASSERT_EQ(ended.has_value(), is_there);
      if (ended) note(*ended);
    }
    if (chance(1))
      for (const Progress& progress : scheduler_.abort_all()) note(progress);
    if (chance(4)) change_weights(chance(50) ? CachePolicy::kFlush : CachePolicy::kKeep);
    if (chance(2)) {
      scheduler_.forget_prefixes();
      ++happened_.forgotten;
    }
    if (chance(8)) {
      is_admitting_ = !is_admitting_;
      scheduler_.admit(is_admitting_);
    }
  }

  void change_weights(CachePolicy policy) {
    ++version_.step;
    scheduler_.weights_changed(policy);
    if (policy == CachePolicy::kFlush) model_.forbid_before(version_);
    ++(policy == CachePolicy::kFlush ? happened_.flushed : happened_.kept);
  }

  void step() {
    const bool is_idle = scheduler_.idle();
    const std::uint64_t begun = scheduler_.stats().prompt_tokens;
    Batch batch = scheduler_.plan();
    ASSERT_EQ(batch.slices.empty(), is_idle);
    ASSERT_TRUE(is_admitting_ || scheduler_.stats().prompt_tokens == begun)
        << "it has begun and was not admitted";
    check_stats();
    while (chance(15)) {
      if (is_asking_ && chance(20)) ask();  // while a step is computed
      model_.break_off(batch, version_, random_);
      scheduler_.drop();
      ++happened_.dropped;
      const Batch again = scheduler_.plan();
      for (const SequenceSlice& slice : batch.slices)
        ASSERT_NE(std::ranges::find(again.slices, slice), again.slices.end())
            << "a dropped step is planned again";
      batch = again;
    }
    const std::vector<float> logits = model_.forward(batch, version_);
    for (const SequenceSlice& slice : batch.slices) happened_.pieces += slice.wants_logits ? 0 : 1;
    if (is_asking_ && chance(10)) ask();
    const std::size_t rows = logits.size() / options_.vocabulary;
    for (const Progress& progress :
         scheduler_.take(version_, {logits, rows, rows == 0 ? 0 : options_.vocabulary}))
      note(progress);
    check_stats();
  }

  void check_stats() const {
    const SchedulerStats stats = scheduler_.stats();
    ASSERT_LE(stats.running, options_.max_sequences);
    ASSERT_LE(stats.blocks_used + stats.blocks_cached, options_.blocks);
    const auto open = std::ranges::count_if(
        asked_, [](const auto& one) { return !one.second.finished.has_value(); });
    ASSERT_EQ(stats.running + stats.waiting, static_cast<std::uint64_t>(open));
    if (stats.running == 0) {
      ASSERT_EQ(stats.blocks_used, 0U);
    }
  }

  // The token that `asked` alone has after `output`, by weights of `version`.
  [[nodiscard]] std::vector<float> logits_after(const Asked& asked, std::span<const Token> output,
                                                const Version& version) const {
    std::vector<Token> tokens = asked.request.prompt;
    tokens.insert(tokens.end(), output.begin(), output.end());
    return shadow_logits(history_of(tokens), version, options_.vocabulary);
  }
  [[nodiscard]] static Token choice(const Asked& asked, std::span<const Token> output,
                                    std::span<const float> logits) {
    return sample(logits, asked.request.sampling, asked.stream,
                  static_cast<std::uint32_t>(output.size()));
  }
  // Tokens of the longest stop that the output ends with.
  [[nodiscard]] static std::size_t stop_at_end(const Asked& asked, std::span<const Token> output) {
    std::size_t longest = 0;
    for (const std::vector<Token>& stop : asked.request.stops)
      if (output.size() >= stop.size() && std::ranges::equal(output.last(stop.size()), stop))
        longest = std::max(longest, stop.size());
    return longest;
  }
  // Whether the tokens that follow `output` are a stop, if steps of versions from `from` to the
  // present one have computed them.
  [[nodiscard]] bool stop_follows(const Asked& asked, std::vector<Token> output,
                                  const Version& from) const {
    const std::size_t hidden = output.size() - asked.output.size();
    const std::size_t stop = stop_at_end(asked, output);
    if (stop > 0) return stop == hidden;
    if (hidden == 3 || output.size() == asked.request.max_tokens) return false;
    for (Version version = from; version <= version_; ++version.step) {
      std::vector<Token> longer = output;
      longer.push_back(choice(asked, output, logits_after(asked, output, version)));
      if (stop_follows(asked, std::move(longer), version)) return true;
    }
    return false;
  }

  void note_token(Asked& asked, const GeneratedToken& token) {
    ASSERT_GE(token.version, asked.last) << "versions of an output grow";
    ASSERT_LE(token.version, version_);
    const std::vector<float> logits = logits_after(asked, asked.output, token.version);
    ASSERT_EQ(token.token, choice(asked, asked.output, logits))
        << "token " << asked.output.size() << " is not what the request gives alone";
    ASSERT_EQ(token.logprob, logprobs_of(logits, std::span(&token.token, 1))[0]);
    const std::uint32_t logprobs = asked.request.logprobs;
    ASSERT_EQ(token.most_likely,
              logprobs > 0 ? most_likely(logits, logprobs) : std::vector<Likelihood>{});
    if (!asked.output.empty() && token.version != asked.last) ++happened_.many_versions;
    asked.output.push_back(token.token);
    asked.last = token.version;
    ASSERT_EQ(stop_at_end(asked, asked.output), 0U) << "a stop is not part of an output";
  }

  void note(const Progress& progress) {
    ASSERT_TRUE(asked_.contains(progress.id)) << "it was cancelled or never asked";
    Asked& asked = asked_[progress.id];
    ASSERT_FALSE(asked.finished) << "told after its end";
    ASSERT_TRUE(progress.finished || !progress.tokens.empty()) << "nothing is told";
    bool is_at_end = false;
    for (const GeneratedToken& token : progress.tokens) {
      ASSERT_FALSE(is_at_end) << "tokens after the end token or max_tokens";
      ASSERT_NO_FATAL_FAILURE(note_token(asked, token)) << "request " << progress.id;
      is_at_end =
          token.token == asked.request.end_token || asked.output.size() == asked.request.max_tokens;
    }
    ASSERT_TRUE(!is_at_end || progress.finished);
    asked.finished = progress.finished;
    if (progress.finished) check_end(asked, is_at_end);
  }

  void check_end(const Asked& asked, bool is_at_end) {
    switch (*asked.finished) {
      case FinishReason::kLength:
        ASSERT_EQ(asked.output.size(), asked.request.max_tokens);
        ++happened_.by_length;
        return;
      case FinishReason::kStop:
        if (is_at_end) {
          ASSERT_EQ(asked.output.back(), asked.request.end_token);
          ++happened_.by_end_token;
          return;
        }
        ASSERT_TRUE(stop_follows(asked, asked.output, std::max(asked.last, Version{1, 1})));
        ++happened_.by_stop;
        return;
      case FinishReason::kAbort:
        ++happened_.by_abort;
        return;
    }
  }

  std::mt19937_64 random_;
  Happened& happened_;
  SchedulerOptions options_;
  Scheduler scheduler_;
  ShadowModel model_;
  std::map<RequestId, Asked> asked_;
  Version version_{.epoch = 1, .step = 1};
  bool is_admitting_ = true;
  bool is_asking_ = true;
};

TEST(SchedulerLoad, EveryRequestGivesWhatItGivesAlone) {
  Happened happened;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Load(seed, happened).run();
    if (HasFailure()) return;
  }
  for (const std::uint64_t count :
       {happened.put_back, happened.shared, happened.hits, happened.pieces, happened.dropped,
        happened.flushed, happened.kept, happened.cancelled, happened.forgotten,
        happened.queue_full, happened.too_large, happened.many_versions, happened.by_stop,
        happened.by_end_token, happened.by_length, happened.by_abort})
    EXPECT_GT(count, kSeeds) << "the loads do not have all that they are to have";
}

}  // namespace
}  // namespace wsync::engine::generation
