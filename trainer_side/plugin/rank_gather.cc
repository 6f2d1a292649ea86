#include "trainer_side/plugin/rank_gather.h"

#include <algorithm>
#include <set>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/planted.h"
#include "shared/base/shared_memory.h"
#include "shared/config/defaults.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/dtype.h"

namespace wsync::plugin {
namespace {

using publish::RankTensor;

// How long a rank on another host may be away before the step that waits for its report fails.
constexpr std::chrono::seconds kRejoinWait{5};

// All shards as one model. Holds the views of the arenas, and with them their read leases, as long
// as the snapshot reads the shards.
class GatheredWeights final : public publish::WeightSource {
 public:
  GatheredWeights(std::vector<ArenaView> views, publish::GatheredSource source)
      : views_(std::move(views)), source_(std::move(source)) {}
  // Of which ranks on other hosts serve parts.
  GatheredWeights(std::vector<ArenaView> views, publish::GatheredSource source,
                  PartArrangement arrangement, std::shared_ptr<const publish::PartedVersion> parted)
      : views_(std::move(views)),
        source_(std::move(source)),
        arrangement_(std::move(arrangement)),
        parted_(std::move(parted)) {
    arrangement_->apply(source_);
  }
  [[nodiscard]] const std::shared_ptr<const Manifest>& manifest() const override {
    return source_.manifest();
  }
  [[nodiscard]] Result<> read(std::uint32_t tensor, std::uint64_t offset,
                              std::span<std::byte> into) override {
    return source_.read(tensor, offset, into);
  }
  [[nodiscard]] Result<WordSum> read_sum(std::uint32_t tensor, const SumPlace& place,
                                         std::span<std::byte> into) override {
    return source_.read_sum(tensor, place, into);
  }
  [[nodiscard]] bool is_on_host() const override { return source_.is_on_host(); }
  [[nodiscard]] Result<> start(const publish::WritableArena& arena,
                               const BucketPlan& plan) override {
    return source_.start(arena, plan);
  }
  void finish() override { source_.finish(); }
  [[nodiscard]] std::shared_ptr<const publish::PartedVersion> parted() const override {
    return parted_;
  }

 private:
  std::vector<ArenaView> views_;
  publish::GatheredSource source_;
  std::optional<PartArrangement> arrangement_;  // has the bytes that are carried
  std::shared_ptr<const publish::PartedVersion> parted_;
};

bool same_layout(const std::vector<RankTensor>& one, const std::vector<RankTensor>& other) {
  return std::ranges::equal(one, other, [](const RankTensor& a, const RankTensor& b) {
    return a.info == b.info && a.range == b.range;
  });
}

// Maps the arena of a rank and sets the position of each of its tensors. The arena must match the
// reported step and content, because a rank cannot change it after its report.
Result<ArenaView> map_shards(const control::Snapshotted& snapshotted, int arena,
                             std::vector<RankTensor>& tensors, KeptMappings* kept) {
  std::vector<TensorInfo> infos;
  for (const RankTensor& tensor : tensors) {
    auto info = WSYNC_TRY(shard_info(tensor));
    infos.push_back(std::move(info));
  }
  const auto manifest = WSYNC_TRY(Manifest::create(std::move(infos)));
  const auto plan = WSYNC_TRY(BucketPlan::create(manifest, config::kBucketBytesDefault));
  auto view = ArenaView::open(arena,
                              {.version = std::pair(std::uint64_t{0}, snapshotted.step),
                               .layout = manifest.layout_digest(),
                               .content = snapshotted.content_digest,
                               .data_bytes = plan.arena_bytes()},
                              1, kept);
  if (!view) return view;
  for (RankTensor& tensor : tensors) {
    const auto index = manifest.find(tensor.info.name);
    const auto pieces = plan.tensor_pieces(*index);
    const std::uint64_t begin = pieces.empty() ? 0 : plan.arena_offset(pieces.front());
    tensor.bytes = view->data().subspan(begin, manifest.byte_size(*index));
  }
  return view;
}

}  // namespace

Result<TensorInfo> shard_info(const RankTensor& tensor) {
  TensorInfo info = tensor.info;
  if (tensor.range) {
    const publish::ShardRange& range = *tensor.range;
    if (range.dim >= info.shape.size())
      return fail(ErrorCode::kInvalidInput, fmt::format("tensor {}: it has no dimension {} to cut",
                                                        describe(info), range.dim));
    const std::uint64_t extent = info.shape[range.dim];
    if (range.begin > extent || range.length > extent - range.begin)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("tensor {}: range [{}, +{}) is outside of dimension {}",
                              describe(info), range.begin, range.length, range.dim));
    info.shape[range.dim] = range.length;
  }
  (void)WSYNC_TRY(info.byte_size());
  return info;
}

control::EngineTensor to_message(const RankTensor& tensor) {
  control::EngineTensor message{
      .name = tensor.info.name, .dtype = tensor.info.dtype, .shape = tensor.info.shape};
  if (tensor.range)
    message.ranges.push_back(
        {.dim = tensor.range->dim, .begin = tensor.range->begin, .length = tensor.range->length});
  return message;
}

Result<RankTensor> from_message(const control::EngineTensor& message) {
  if (message.ranges.size() > 1)
    return fail(ErrorCode::kInvalidInput, fmt::format("tensor {}: {} ranges, at most 1 is allowed",
                                                      message.name, message.ranges.size()));
  RankTensor tensor{.info = {.name = message.name, .dtype = message.dtype, .shape = message.shape}};
  if (!message.ranges.empty())
    tensor.range = publish::ShardRange{.dim = message.ranges[0].dim,
                                       .begin = message.ranges[0].begin,
                                       .length = message.ranges[0].length};
  (void)WSYNC_TRY(shard_info(tensor));
  return tensor;
}

bool is_lost(const control::PublishStatus& status) noexcept {
  return status.state == control::PublishState::kFailed && status.version.none() &&
         status.code == ErrorCode::kPeerLost;
}

// ---- reports of the ranks ----

Result<> RankGather::join(const control::RankHello& hello) {
  if (hello.world_size != world_size_)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("rank {} reports {} ranks, but rank 0 was created for {}", hello.rank,
                            hello.world_size, world_size_));
  if (hello.rank == 0 || hello.rank >= world_size_)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("rank {} is not one of 1 to {}", hello.rank, world_size_ - 1));
  const std::lock_guard lock(mutex_);
  Rank& rank = ranks_[hello.rank];
  WSYNC_TRY(check_process({.rank = hello.rank, .incarnation = hello.incarnation}));
  if (rank.joined && hello.incarnation == rank.incarnation)
    return fail(ErrorCode::kBusy,
                fmt::format("process {} is rank {} already; process {} is refused", rank.pid,
                            hello.rank, hello.pid));
  if (rank.joined) lose(hello.rank, "was replaced");
  rank.joined = true;
  rank.pid = hello.pid;
  rank.incarnation = hello.incarnation;
  ++rank.connection;
  if (missed_ && missed_->rank == hello.rank) missed_.reset();
  rank.tensors.reset();
  rank.owner.reset();
  rank.last_step = 0;
  return {};
}

Result<> RankGather::serve(const RankProcess& process, const control::RankServes& serves) {
  const auto secret = transport::pair_secret_of(serves.secret);
  if (!serves.secret.empty() && !secret)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("rank {} names a secret of {} bytes, expected {}", process.rank,
                            serves.secret.size(), transport::PairSecret().size()));
  if (serves.transports.empty())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("rank {} on {} names no address at which it serves its part",
                            process.rank, serves.host));
  const std::lock_guard lock(mutex_);
  WSYNC_TRY(check_process(process));
  ranks_[process.rank].owner =
      coordinator::PartOwner{.name = fmt::format("rank {} on {}", process.rank, serves.host),
                             .transports = serves.transports,
                             .secret = secret,
                             .boot_id = serves.boot_id};
  return {};
}

Result<> RankGather::part_summed(const RankProcess& process, control::PartSummed summed) {
  const std::lock_guard lock(mutex_);
  WSYNC_TRY(check_process(process));
  if (summing_ != summed.question || collecting_step_ != summed.step) return {};
  summed_[process.rank] = std::move(summed);
  changed_.notify_all();
  return {};
}

Result<> RankGather::check_process(const RankProcess& process) {
  const Rank& rank = ranks_[process.rank];
  if (process.incarnation >= rank.incarnation || planted("old_incarnation_taken")) return {};
  return fail(ErrorCode::kFenced,
              fmt::format("rank {} was replaced: incarnation {} (process {}) is that rank now, and "
                          "messages of incarnation {} are refused",
                          process.rank, rank.incarnation, rank.pid, process.incarnation));
}

Result<> RankGather::describe(const RankProcess& process, const control::RankShards& shards) {
  auto tensors = std::make_shared<std::vector<RankTensor>>();
  for (const control::EngineTensor& message : shards.tensors) {
    auto tensor = from_message(message);
    if (!tensor) return fail(tensor.error().with_context(fmt::format("rank {}", process.rank)));
    tensors->push_back(std::move(*tensor));
  }
  const std::lock_guard lock(mutex_);
  WSYNC_TRY(check_process(process));
  ranks_[process.rank].tensors = std::move(tensors);
  return {};
}

Result<> RankGather::report(const RankProcess& process, const control::Snapshotted& snapshotted,
                            UniqueFd arena) {
  const std::lock_guard lock(mutex_);
  WSYNC_TRY(check_process(process));
  // The process that this one replaces reported the same content, which is already being published.
  if (const Rank& from = ranks_[process.rank];
      snapshotted.step == over_ && snapshotted.step == from.gathered_step &&
      from.pid != from.gathered_pid && snapshotted.failure.empty() &&
      snapshotted.content_digest == from.gathered_digest)
    return {};
  if (snapshotted.step <= over_ && collecting_ != snapshotted.step)
    return fail(ErrorCode::kRefused,
                snapshotted.step == over_
                    ? fmt::format("rank 0 has finished step {}: {}", snapshotted.step, over_reason_)
                    : fmt::format("rank 0 has moved on to step {}", over_));
  const std::uint32_t rank = process.rank;
  Rank& from = ranks_[rank];
  if (!from.tensors)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("rank {} reports step {} before it has described its tensors", rank,
                            snapshotted.step));
  if (snapshotted.failure.empty() && !arena.valid() && !from.owner)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("rank {} reports step {} without its arena", rank, snapshotted.step));
  Report report{.snapshotted = snapshotted,
                .tensors = from.tensors,
                .arena = std::move(arena),
                .pid = from.pid,
                .connection = from.connection};
  const auto at = std::ranges::lower_bound(from.reports, snapshotted.step, {},
                                           [](const Report& r) { return r.snapshotted.step; });
  if (at != from.reports.end() && at->snapshotted.step == snapshotted.step)
    return report_again(rank, *at, std::move(report));
  if (snapshotted.step <= from.last_step && !from.reports.empty())
    return fail(ErrorCode::kRefused, fmt::format("rank {} reports step {} after step {}", rank,
                                                 snapshotted.step, from.last_step));
  if (from.reports.size() >= limits::kRankReportCount)
    return fail(ErrorCode::kBusy,
                fmt::format("rank {} has {} steps waiting for rank 0, at most {} are kept", rank,
                            from.reports.size(), limits::kRankReportCount));
  from.last_step = snapshotted.step;
  from.reports.insert(at, std::move(report));
  changed_.notify_all();
  return {};
}

// Handles a second report of a waiting step. The first report is committed, so the content must be
// equal.
Result<> RankGather::report_again(std::uint32_t rank, Report& waiting, Report again) {
  if (!again.snapshotted.failure.empty() && waiting.snapshotted.failure.empty()) return {};
  const bool same = again.snapshotted.content_digest == waiting.snapshotted.content_digest &&
                    same_layout(*again.tensors, *waiting.tensors);
  if (!waiting.is_disputed && (same || !waiting.snapshotted.failure.empty())) {
    waiting = std::move(again);
    changed_.notify_all();
    return {};
  }
  if (!waiting.is_disputed) {
    waiting.is_disputed = true;
    waiting.snapshotted.failure = fmt::format(
        "two contents of step {}: process {} has reported digest {}, process {} reports {}{}; "
        "neither is published",
        waiting.snapshotted.step, waiting.pid, waiting.snapshotted.content_digest.to_string(),
        again.pid, again.snapshotted.content_digest.to_string(),
        same_layout(*again.tensors, *waiting.tensors) ? "" : " of other tensors");
    waiting.arena = UniqueFd();
    changed_.notify_all();
  }
  return fail(ErrorCode::kRefused, fmt::format("rank {}: {}", rank, waiting.snapshotted.failure));
}

void RankGather::leave(const RankProcess& process) {
  const std::lock_guard lock(mutex_);
  if (ranks_[process.rank].incarnation == process.incarnation) lose(process.rank, "disconnected");
}

void RankGather::lose(std::uint32_t rank, std::string_view how) {
  Rank& from = ranks_[rank];
  from.joined = false;
  is_any_lost_ = true;
  if (from.owner && !planted("report_of_a_lost_host_counts")) from.reports.clear();
  if (collecting_ && !has_reported(from, *collecting_) && !lost_ && !missed_) {
    Error why(ErrorCode::kPeerLost,
              fmt::format("rank {} (process {}) {} before it had snapshotted step {}", rank,
                          from.pid, how, *collecting_));
    if (from.owner)
      missed_.emplace(rank, now() + kRejoinWait, std::move(why));
    else
      lost_ = std::move(why);
  }
  changed_.notify_all();
}

// ---- waiting for all ranks ----

bool RankGather::has_reported(const Rank& from, std::uint64_t step) {
  return !from.reports.empty() && from.reports.front().snapshotted.step == step;
}

// Returns whether every rank has reported the step; an error if one of them never will.
Result<bool> RankGather::complete(std::uint64_t step) {
  if (is_cancelled_) return fail(ErrorCode::kCancelled, "the trainer is being destroyed");
  bool is_complete = true;
  for (std::uint32_t rank = 1; rank < world_size_; ++rank) {
    const Rank& from = ranks_[rank];
    if (!has_reported(from, step)) is_complete = false;
    if (from.reports.empty()) continue;
    const Report& first = from.reports.front();
    // A report of a later step may come from before the rank was lost. The new process will still
    // report this step.
    if (first.snapshotted.step != step && first.connection != from.connection) continue;
    if (first.snapshotted.step != step)
      return fail(ErrorCode::kRefused,
                  fmt::format("rank {} has snapshotted step {}, rank 0 publishes step {}", rank,
                              first.snapshotted.step, step));
    if (!first.snapshotted.failure.empty())
      return fail(ErrorCode::kRefused, fmt::format("rank {}: {}", rank, first.snapshotted.failure));
  }
  if (is_complete) return true;
  if (lost_) return fail(*lost_);
  if (missed_ && now() >= missed_->until) return fail(missed_->why);
  if (no_more_ == step)
    return fail(ErrorCode::kPeerLost, fmt::format("a rank was lost: {}", missing(step)));
  return false;
}

std::string RankGather::missing(std::uint64_t step) const {
  std::string sentence;
  for (std::uint32_t rank = 1; rank < world_size_; ++rank) {
    const auto found = ranks_.find(rank);
    const bool is_known = found != ranks_.end();
    if (is_known && has_reported(found->second, step)) continue;
    if (!sentence.empty()) sentence += ", ";
    if (!is_known || !found->second.joined)
      sentence += fmt::format("rank {} is not connected", rank);
    else
      sentence += fmt::format("rank {} (process {}) has not snapshotted step {}", rank,
                              found->second.pid, step);
  }
  return sentence;
}

void RankGather::end_step(std::uint64_t step, const std::string& reason) {
  for (auto& [rank, from] : ranks_)
    std::erase_if(from.reports,
                  [&](const Report& report) { return report.snapshotted.step <= step; });
  if (step < over_) return;
  over_ = step;
  over_reason_ = reason;
}

void RankGather::give_up(std::uint64_t step, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  end_step(step, reason);
}

void RankGather::reopen(std::uint64_t step) {
  if (over_ != step) return;
  over_ = step - 1;
  over_reason_ = fmt::format("rank 0 publishes step {}", step);
}

void RankGather::expect(std::uint64_t step) {
  const std::lock_guard lock(mutex_);
  if (no_more_ == step) no_more_.reset();
  if (collecting_ != step) reopen(step);
}

void RankGather::no_more(std::uint64_t step) {
  const std::lock_guard lock(mutex_);
  no_more_ = step;
  changed_.notify_all();
}

void RankGather::cancel() {
  const std::lock_guard lock(mutex_);
  is_cancelled_ = true;
  changed_.notify_all();
}

Result<std::unique_ptr<publish::WeightSource>> RankGather::collect(
    std::uint64_t step, const std::vector<RankTensor>& own, TimePoint deadline) {
  const TimePoint begun = now();
  std::vector<Report> reports;
  bool is_any_lost = false;
  {
    std::unique_lock lock(mutex_);
    end_step(step - 1, fmt::format("rank 0 publishes step {}", step));
    collecting_ = step;
    lost_.reset();
    missed_.reset();
    Result<bool> done = complete(step);
    while (done && !*done) {
      if (now() >= deadline) {
        done =
            fail(ErrorCode::kDeadline,
                 fmt::format(
                     "{} within {} ms (deadlines.gather)", missing(step),
                     std::chrono::duration_cast<std::chrono::milliseconds>(now() - begun).count()));
        break;
      }
      const TimePoint until = missed_ ? std::min(deadline, missed_->until) : deadline;
      changed_.wait_for(lock, until - now());
      done = complete(step);
    }
    collecting_.reset();
    is_any_lost = std::exchange(is_any_lost_, false);
    if (done)
      for (std::uint32_t rank = 1; rank < world_size_; ++rank) {
        Rank& from = ranks_[rank];
        from.gathered_step = step;
        from.gathered_pid = from.reports.front().pid;
        from.gathered_digest = from.reports.front().snapshotted.content_digest;
        reports.push_back(std::move(from.reports.front()));
      }
    if (!done && done.error().code() == ErrorCode::kPeerLost)
      reopen(step);
    else
      end_step(step, done ? "its shards have been gathered" : done.error().message());
    if (!done) return fail(done.error());
  }
  // A rank that was killed has not said that its arenas are freed. Here, because unmapping takes
  // long.
  if (is_any_lost)
    kept_.take_all().clear();
  else
    kept_.take_retired().clear();
  auto source = assemble(step, own, reports, is_any_lost, deadline);
  if (source || source.error().code() != ErrorCode::kPeerLost) return source;
  // As above: the step may be collected again, and the reports of the other ranks count.
  const std::lock_guard lock(mutex_);
  for (std::uint32_t rank = 1; rank < world_size_; ++rank) {
    Rank& from = ranks_[rank];
    Report& report = reports[rank - 1];
    // What a rank on another host has reported may be gone with its connection.
    const bool is_gone =
        !report.arena.valid() && (!from.joined || report.connection != from.connection);
    if (!is_gone && !has_reported(from, step)) from.reports.push_front(std::move(report));
  }
  reopen(step);
  return source;
}

Result<RankGather::Gathered> RankGather::map_reports(const std::vector<RankTensor>& own,
                                                     const std::vector<Report>& reports,
                                                     bool is_any_lost) {
  Gathered gathered{.ranks = {own}, .views = {}};
  for (std::size_t i = 0; i < reports.size(); ++i) {
    std::vector<RankTensor>& shards = gathered.ranks.emplace_back(*reports[i].tensors);
    if (!reports[i].arena.valid()) {
      for (RankTensor& shard : shards) shard.bytes = publish::RemoteBytes();
      continue;
    }
    auto view = map_shards(reports[i].snapshotted, reports[i].arena.get(), shards,
                           is_any_lost ? nullptr : &kept_);
    if (!view) return fail(view.error().with_context(fmt::format("the shards of rank {}", i + 1)));
    gathered.views.push_back(std::move(*view));
  }
  return gathered;
}

Result<std::unique_ptr<publish::WeightSource>> RankGather::assemble(
    std::uint64_t step, const std::vector<RankTensor>& own, const std::vector<Report>& reports,
    bool is_any_lost, TimePoint deadline) {
  auto gathered = WSYNC_TRY(map_reports(own, reports, is_any_lost));
  auto source = WSYNC_TRY(publish::GatheredSource::create(std::move(gathered.ranks)));
  PartArrangement::Described described;
  for (std::size_t i = 0; i < reports.size(); ++i)
    if (!reports[i].arena.valid())
      described[static_cast<std::uint32_t>(i) + 1] = reports[i].tensors.get();
  if (described.empty())
    return std::make_unique<GatheredWeights>(std::move(gathered.views), std::move(source));

  auto arrangement = WSYNC_TRY(PartArrangement::make(source, described, step, bucket_bytes_));
  publish::PartedVersion::Content content = arrangement.content();
  std::uint64_t question = 0;
  {
    const std::lock_guard lock(mutex_);
    question = ++questions_;
    summing_ = question;
    collecting_step_ = step;
    summed_.clear();
    for (const std::uint32_t rank : arrangement.part_ranks())
      if (const auto& owner = ranks_[rank].owner) content.owners.push_back(*owner);
  }
  // From here on its end releases the parts.
  auto parted = std::make_shared<const publish::PartedVersion>(
      std::move(content),
      [released = observer_.on_parts_released, question] { released(question); });
  observer_.on_parts_wanted(question, arrangement.orders());
  const Result<> answered = await_parts(arrangement, reports, deadline);
  {
    const std::lock_guard lock(mutex_);
    summing_.reset();
  }
  if (!answered) return fail(answered.error());
  if (parted->owners().size() != parted->ranks().size())
    return fail(ErrorCode::kPeerLost, "a rank on another host was lost");
  // All of it has come here: it is a version like any other.
  if (arrangement.part_ranks().empty()) parted.reset();
  return std::make_unique<GatheredWeights>(std::move(gathered.views), std::move(source),
                                           std::move(arrangement), std::move(parted));
}

Result<> RankGather::await_parts(PartArrangement& arrangement, const std::vector<Report>& reports,
                                 TimePoint deadline) {
  std::set<std::uint32_t> awaited;
  for (const auto& [rank, order] : arrangement.orders()) awaited.insert(rank);
  std::unique_lock lock(mutex_);
  while (!awaited.empty()) {
    if (is_cancelled_) return fail(ErrorCode::kCancelled, "the trainer is being destroyed");
    for (auto& [rank, answer] : summed_)
      if (awaited.erase(rank) != 0) WSYNC_TRY(arrangement.take(rank, std::move(answer)));
    summed_.clear();
    for (const std::uint32_t rank : awaited) {
      const Rank& from = ranks_[rank];
      const Report& report = reports[rank - 1];
      if (!from.joined || from.connection != report.connection)
        return fail(ErrorCode::kPeerLost,
                    fmt::format("rank {} (process {}) disconnected before it had summed its part "
                                "of step {}",
                                rank, report.pid, report.snapshotted.step));
    }
    if (awaited.empty()) break;
    if (no_more_ == collecting_step_)
      return fail(ErrorCode::kPeerLost,
                  fmt::format("a rank was lost before rank {} had summed its part of step {}",
                              *awaited.begin(), collecting_step_));
    if (now() >= deadline)
      return fail(ErrorCode::kDeadline,
                  fmt::format("rank {} (process {}) has not summed its part of step {} in time "
                              "(deadlines.gather)",
                              *awaited.begin(), reports[*awaited.begin() - 1].pid,
                              reports[*awaited.begin() - 1].snapshotted.step));
    changed_.wait_for(lock, deadline - now());
  }
  return {};
}

}  // namespace wsync::plugin
