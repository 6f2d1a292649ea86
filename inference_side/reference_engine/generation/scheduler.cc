#include "inference_side/reference_engine/generation/scheduler.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <span>
#include <utility>

#include "inference_side/reference_engine/generation/block_pool.h"
#include "inference_side/reference_engine/generation/sampler.h"
#include "inference_side/reference_engine/generation/stop_scanner.h"
#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"

namespace wsync::engine::generation {
namespace {

// A request that is not finished.
struct Sequence {
  Sequence(RequestId its_id, Request its_request)
      : id(its_id),
        request(std::move(its_request)),
        tokens(std::exchange(request.prompt, {})),
        prompt_tokens(tokens.size()),
        stops(request.stops) {}

  RequestId id;
  Request request;            // without its prompt
  std::vector<Token> tokens;  // prompt, then generated tokens
  std::size_t prompt_tokens;
  StopScanner stops;
  std::vector<GeneratedToken> held;  // generated, not delivered yet
  bool begun = false;                // has run, and may have been preempted since

  std::vector<std::uint32_t> blocks;
  std::size_t computed = 0;        // tokens whose keys and values are in the blocks
  std::size_t planned = 0;         // tokens in the current step
  std::size_t known_blocks = 0;    // number of blocks that `prefix` covers
  Prefix prefix = Prefix::kEmpty;  // prefix of the computed tokens
  bool is_shared = true;           // its blocks may be shared with other sequences

  [[nodiscard]] std::size_t missing() const { return tokens.size() - computed; }
  [[nodiscard]] std::uint32_t generated() const {
    return static_cast<std::uint32_t>(tokens.size() - prompt_tokens);
  }
  // The last notification of the sequence.
  [[nodiscard]] Progress finish(FinishReason reason) {
    return {.id = id, .tokens = std::exchange(held, {}), .finished = reason};
  }
};
using SequencePtr = std::unique_ptr<Sequence>;

std::uint64_t blocks_that_hold(std::uint64_t tokens, std::uint32_t block_tokens) {
  return (tokens + block_tokens - 1) / block_tokens;
}

}  // namespace

// This class has more than 25 methods: each stage of a step has its own, so that tests can check
// the stages one by one.
class Scheduler::Impl {
 public:
  explicit Impl(const SchedulerOptions& options) : options_(options), pool_(options.blocks) {
    WSYNC_CHECK(options.vocabulary > 0 && options.max_positions > 0 && options.blocks > 0 &&
                    options.block_tokens > 0 && options.max_step_tokens > 0 &&
                    options.max_sequences > 0 && options.max_waiting > 0,
                "a scheduler's limits are above 0");
  }

  Result<RequestId> add(Request request);
  std::optional<SequencePtr> remove(RequestId id);

  Batch plan();
  std::vector<Progress> take(const Version& version, moe::ConstMatrix logits);
  void drop();

  [[nodiscard]] bool idle() const { return running_.empty() && !may_begin(); }
  [[nodiscard]] bool running() const {
    return !running_.empty() || (!waiting_.empty() && waiting_.front()->begun);
  }
  void admit(bool yes) { is_admitting_ = yes; }
  std::vector<Progress> abort_all();
  void weights_changed(CachePolicy policy);
  void forget_prefixes();
  [[nodiscard]] SchedulerStats stats() const;

 private:
  // Whether the head of the queue may begin. Preempted sequences are always before those that have
  // not begun, because both the running list and the queue are in order of arrival.
  [[nodiscard]] bool may_begin() const {
    return !waiting_.empty() && (is_admitting_ || waiting_.front()->begun);
  }

  enum class Part : std::uint8_t { kDecode, kPrompt };
  void plan_running(Part part);
  void plan_waiting();
  bool hold_blocks(Sequence& sequence, std::size_t spare);
  void use_known_prefix(Sequence& sequence);
  bool make_room(Sequence& sequence);
  void put_back_youngest();
  void plan_tokens(Sequence& sequence);
  [[nodiscard]] SequenceSlice slice_of(const Sequence& sequence) const;

  void publish(Sequence& sequence);
  [[nodiscard]] Progress advance(Sequence& sequence, const Version& version,
                                 std::span<const float> logits);
  void release_blocks(Sequence& sequence);
  void check_between_steps() const {
    WSYNC_CHECK(planned_.empty(), "take() or drop() follows plan() before anything changes");
  }

  const SchedulerOptions options_;
  BlockPool pool_;
  std::vector<SequencePtr> running_;  // oldest first; all are older than the waiting ones
  std::deque<SequencePtr> waiting_;   // oldest first
  bool is_admitting_ = true;
  RequestId last_id_ = 0;
  std::vector<Sequence*> planned_;  // sequences of the current step, in its order
  std::size_t budget_ = 0;          // number of tokens that the step still has room for
  SchedulerStats stats_;            // counters since the start
};

Result<RequestId> Scheduler::Impl::add(Request request) {
  WSYNC_TRY(check_request(request, options_.vocabulary, options_.max_positions));
  // The last token of an output is never computed, so it needs no position.
  const std::uint64_t positions = request.prompt.size() + std::uint64_t{request.max_tokens} - 1;
  const std::uint64_t needed = blocks_that_hold(positions, options_.block_tokens);
  if (needed > options_.blocks)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("max_tokens: the prompt's {} and max_tokens {} need {} of {} tokens "
                            "for their keys and values; the engine has {} blocks, so shorten one "
                            "of the two or give the engine more memory for them",
                            counted(request.prompt.size(), "token"), request.max_tokens,
                            counted(needed, "block"), options_.block_tokens, options_.blocks));
  if (waiting_.size() >= options_.max_waiting)
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("the queue is full with {}; try again when some of them have begun",
                            counted(waiting_.size(), "request")));
  waiting_.push_back(std::make_unique<Sequence>(++last_id_, std::move(request)));
  return last_id_;
}

// Removes a request from the running list or the queue, and releases its blocks.
std::optional<SequencePtr> Scheduler::Impl::remove(RequestId id) {
  check_between_steps();
  const auto take_from = [&](auto& sequences) -> std::optional<SequencePtr> {
    const auto at = std::find_if(sequences.begin(), sequences.end(),
                                 [&](const SequencePtr& sequence) { return sequence->id == id; });
    if (at == sequences.end()) return std::nullopt;
    SequencePtr sequence = std::move(*at);
    sequences.erase(at);
    release_blocks(*sequence);
    return sequence;
  };
  std::optional<SequencePtr> removed = take_from(running_);
  return removed ? std::move(removed) : take_from(waiting_);
}

Batch Scheduler::Impl::plan() {
  check_between_steps();
  budget_ = options_.max_step_tokens;
  plan_running(Part::kDecode);
  plan_running(Part::kPrompt);
  plan_waiting();
  WSYNC_CHECK(!planned_.empty() || idle(), "there is always something that can be computed");
  Batch batch;
  batch.slices.reserve(planned_.size());
  for (const Sequence* sequence : planned_) batch.slices.push_back(slice_of(*sequence));
  return batch;
}

void Scheduler::Impl::plan_running(Part part) {
  // Use an index: the loop may preempt the youngest sequence, which removes the last element.
  for (std::size_t i = 0; i < running_.size() && budget_ > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.planned > 0 || (sequence.missing() == 1) != (part == Part::kDecode)) continue;
    if (!make_room(sequence)) return;
    plan_tokens(sequence);
  }
}

void Scheduler::Impl::plan_waiting() {
  while (budget_ > 0 && running_.size() < options_.max_sequences && may_begin()) {
    Sequence& sequence = *waiting_.front();
    // Require spare blocks. Without them this sequence would be preempted as soon as the others
    // grow.
    if (!hold_blocks(sequence, running_.size())) return;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    if (!std::exchange(sequence.begun, true)) stats_.prompt_tokens += sequence.prompt_tokens;
    plan_tokens(sequence);
  }
}

// Allocates the blocks for all tokens of a sequence. Returns false and changes nothing if fewer
// than `spare` blocks would remain.
bool Scheduler::Impl::hold_blocks(Sequence& sequence, std::size_t spare) {
  const bool begins = sequence.blocks.empty();
  if (begins) use_known_prefix(sequence);
  const std::size_t wanted = blocks_that_hold(sequence.tokens.size(), options_.block_tokens);
  if (wanted - sequence.blocks.size() + spare > pool_.available()) {
    if (begins) release_blocks(sequence);
    return false;
  }
  if (begins) stats_.prefix_hit_tokens += sequence.computed;
  while (sequence.blocks.size() < wanted) sequence.blocks.push_back(*pool_.allocate());
  return true;
}

void Scheduler::Impl::use_known_prefix(Sequence& sequence) {
  const std::size_t n = options_.block_tokens;
  // Never take the last token from the cache: the next token is chosen from its logits.
  const std::size_t max = (sequence.tokens.size() - 1) / n;
  while (sequence.known_blocks < max) {
    const auto tokens = std::span(sequence.tokens).subspan(sequence.known_blocks * n, n);
    const std::optional<BlockPool::Found> found = pool_.find(sequence.prefix, tokens);
    if (!found) break;
    sequence.blocks.push_back(found->block);
    sequence.prefix = found->prefix;
    ++sequence.known_blocks;
  }
  sequence.computed = sequence.known_blocks * n;
}

// Allocates the blocks of a sequence, and preempts the youngest sequences until they fit. Returns
// false if the sequence was the youngest itself and was preempted.
bool Scheduler::Impl::make_room(Sequence& sequence) {
  while (!hold_blocks(sequence, 0)) {
    WSYNC_CHECK(running_.size() > 1, "the blocks are sufficient for any single request");
    const bool is_youngest = running_.back().get() == &sequence;
    put_back_youngest();
    if (is_youngest) return false;
  }
  return true;
}

void Scheduler::Impl::put_back_youngest() {
  Sequence& youngest = *running_.back();
  if (youngest.planned > 0) {
    budget_ += std::exchange(youngest.planned, 0);
    std::erase(planned_, &youngest);
  }
  release_blocks(youngest);
  waiting_.push_front(std::move(running_.back()));
  running_.pop_back();
  ++stats_.preempted;
}

void Scheduler::Impl::plan_tokens(Sequence& sequence) {
  sequence.planned = std::min(sequence.missing(), budget_);
  budget_ -= sequence.planned;
  planned_.push_back(&sequence);
}

SequenceSlice Scheduler::Impl::slice_of(const Sequence& sequence) const {
  const auto tokens = std::span(sequence.tokens).subspan(sequence.computed, sequence.planned);
  const std::size_t end = sequence.computed + sequence.planned;
  const auto blocks =
      std::span(sequence.blocks).first(blocks_that_hold(end, options_.block_tokens));
  return {.first_position = static_cast<std::uint32_t>(sequence.computed),
          .tokens = {tokens.begin(), tokens.end()},
          .blocks = {blocks.begin(), blocks.end()},
          .wants_logits = end == sequence.tokens.size()};
}

std::vector<Progress> Scheduler::Impl::take(const Version& version, moe::ConstMatrix logits) {
  std::vector<Progress> news;
  std::vector<const Sequence*> finished;
  std::size_t row = 0;
  for (Sequence* sequence : std::exchange(planned_, {})) {
    sequence->computed += std::exchange(sequence->planned, 0);
    publish(*sequence);
    if (sequence->missing() > 0) continue;
    WSYNC_CHECK(row < logits.rows() && logits.columns() == options_.vocabulary,
                "a step returns one row of logits for each slice that needs logits");
    Progress progress = advance(*sequence, version, logits.row(row++));
    if (progress.finished) {
      release_blocks(*sequence);
      finished.push_back(sequence);
    }
    if (progress.finished || !progress.tokens.empty()) news.push_back(std::move(progress));
  }
  WSYNC_CHECK(row == logits.rows(), "a step returns no row of logits that no slice needs");
  std::erase_if(running_, [&](const SequencePtr& sequence) {
    return std::find(finished.begin(), finished.end(), sequence.get()) != finished.end();
  });
  return news;
}

// Registers the prefixes of the blocks that have become full.
void Scheduler::Impl::publish(Sequence& sequence) {
  if (!sequence.is_shared) return;
  const std::size_t n = options_.block_tokens;
  const std::size_t computed =
      planted("unfinished_block_shared") ? sequence.tokens.size() : sequence.computed;
  for (; sequence.known_blocks < computed / n; ++sequence.known_blocks)
    sequence.prefix =
        pool_.publish(sequence.blocks[sequence.known_blocks], sequence.prefix,
                      std::span(sequence.tokens).subspan(sequence.known_blocks * n, n));
}

// Appends the next token. Returns the notification that can be sent now.
Progress Scheduler::Impl::advance(Sequence& sequence, const Version& version,
                                  std::span<const float> logits) {
  const Request& request = sequence.request;
  const Token token =
      sample(logits, request.sampling, options_.stream + sequence.id, sequence.generated());
  sequence.tokens.push_back(token);
  ++stats_.generated_tokens;
  std::vector<GeneratedToken>& held = sequence.held;
  held.push_back({.token = token,
                  .logprob = logprobs_of(logits, std::span(&token, 1)).front(),
                  .version = version,
                  .most_likely = {}});
  if (request.logprobs > 0) held.back().most_likely = most_likely(logits, request.logprobs);

  const StopScanner::Outcome stop = sequence.stops.push(token);
  if (stop.matched > 0) {
    held.resize(held.size() - stop.matched);
    return sequence.finish(FinishReason::kStop);
  }
  if (ends(request, token)) return sequence.finish(FinishReason::kStop);
  if (sequence.generated() == request.max_tokens) return sequence.finish(FinishReason::kLength);
  const std::size_t kept = planted("stop_not_held_back") ? 0 : stop.held;
  const auto told_end = held.end() - static_cast<std::ptrdiff_t>(kept);
  Progress progress{.id = sequence.id, .tokens = {}, .finished = {}};
  progress.tokens.assign(std::make_move_iterator(held.begin()), std::make_move_iterator(told_end));
  held.erase(held.begin(), told_end);
  return progress;
}

void Scheduler::Impl::drop() {
  for (Sequence* sequence : std::exchange(planned_, {})) sequence->planned = 0;
}

// Releases all blocks. The sequence must be computed again from its first token.
void Scheduler::Impl::release_blocks(Sequence& sequence) {
  // Release the last block first, so that the end of an unused prefix is evicted before its
  // beginning.
  for (auto block = sequence.blocks.rbegin(); block != sequence.blocks.rend(); ++block)
    pool_.release(*block);
  sequence.blocks.clear();
  sequence.computed = 0;
  sequence.known_blocks = 0;
  sequence.prefix = Prefix::kEmpty;
  sequence.is_shared = true;
}

std::vector<Progress> Scheduler::Impl::abort_all() {
  check_between_steps();
  std::vector<Progress> news;
  const auto finish_each = [&](auto& sequences) {
    for (const SequencePtr& sequence : sequences) {
      release_blocks(*sequence);
      news.push_back(sequence->finish(FinishReason::kAbort));
    }
    sequences.clear();
  };
  finish_each(running_);
  finish_each(waiting_);
  return news;
}

void Scheduler::Impl::weights_changed(CachePolicy policy) {
  check_between_steps();
  switch (policy) {
    case CachePolicy::kFlush:
      for (const SequencePtr& sequence : running_) release_blocks(*sequence);
      if (!planted("flush_keeps_prefixes")) pool_.forget_prefixes();
      return;
    case CachePolicy::kKeep:
      return;
  }
}

void Scheduler::Impl::forget_prefixes() {
  check_between_steps();
  pool_.forget_prefixes();
  for (const SequencePtr& sequence : running_) sequence->is_shared = false;
}

SchedulerStats Scheduler::Impl::stats() const {
  SchedulerStats stats = stats_;
  stats.waiting = waiting_.size();
  stats.running = running_.size();
  stats.blocks_used = pool_.used();
  stats.blocks_cached = pool_.cached();
  return stats;
}

Scheduler::Scheduler(const SchedulerOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Scheduler::~Scheduler() = default;
Result<RequestId> Scheduler::add(Request request) { return impl_->add(std::move(request)); }
void Scheduler::cancel(RequestId id) { static_cast<void>(impl_->remove(id)); }
Batch Scheduler::plan() { return impl_->plan(); }
std::vector<Progress> Scheduler::take(const Version& version, moe::ConstMatrix logits) {
  return impl_->take(version, logits);
}
void Scheduler::drop() { impl_->drop(); }
bool Scheduler::idle() const { return impl_->idle(); }
bool Scheduler::running() const { return impl_->running(); }
void Scheduler::admit(bool yes) { impl_->admit(yes); }
std::optional<Progress> Scheduler::abort(RequestId id) {
  const std::optional<SequencePtr> removed = impl_->remove(id);
  if (!removed) return std::nullopt;
  return (*removed)->finish(FinishReason::kAbort);
}
std::vector<Progress> Scheduler::abort_all() { return impl_->abort_all(); }
void Scheduler::weights_changed(CachePolicy policy) { impl_->weights_changed(policy); }
void Scheduler::forget_prefixes() { impl_->forget_prefixes(); }
SchedulerStats Scheduler::stats() const { return impl_->stats(); }

}  // namespace wsync::engine::generation
