#include "inference_side/staging/store.h"

#include <algorithm>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/log.h"

namespace wsync::staging {
namespace {

Version version_of(const ArenaIdentity& identity) {
  return {.epoch = static_cast<std::uint32_t>(identity.version_epoch),
          .step = identity.version_step};
}

std::span<const std::byte> data_of(const HeldVersion::Memory& memory) {
  if (const auto* view = std::get_if<ArenaView>(&memory)) return view->data();
  return std::get<std::shared_ptr<OwnArena>>(memory)->arena.data();
}

}  // namespace

HeldVersion::HeldVersion(const StagingJob& job, ContentDigests digests, Memory memory)
    : identity_(job.identity),
      manifest_(job.manifest),
      plan_(job.plan),
      digests_(std::move(digests)),
      memory_(std::move(memory)),
      data_(data_of(memory_)) {}

std::shared_ptr<const HeldVersion> HeldVersion::make(const StagingJob& job, ContentDigests digests,
                                                     Memory memory,
                                                     const std::shared_ptr<ThreadPool>& unmapper) {
  const auto let_go = [unmapper = std::weak_ptr(unmapper)](HeldVersion* held) {
    const std::unique_ptr<HeldVersion> owned(held);
    auto* view = std::get_if<ArenaView>(&owned->memory_);
    const auto pool = unmapper.lock();
    if (view == nullptr || !pool) return;
    // Copyable, as work has to be; unmaps when the work, done or dropped, is destroyed.
    pool->post([mapping = std::make_shared<MappedRegion>(std::move(*view).end())] {});
  };
  return {new HeldVersion(job, std::move(digests), std::move(memory)), let_go};
}

Version HeldVersion::version() const noexcept { return version_of(identity_); }

Result<UniqueFd> HeldVersion::share() const {
  if (const auto* view = std::get_if<ArenaView>(&memory_)) return view->share();
  return std::get<std::shared_ptr<OwnArena>>(memory_)->arena.share();
}

Store::Store(StoreOptions options, Post post)
    : options_(std::move(options)),
      post_(std::move(post)),
      pool_(std::make_shared<ThreadPool>(options_.verify_threads, options_.verify_nice)),
      alive_(std::make_shared<bool>(true)) {}

Store::~Store() {
  *alive_ = false;
  abort();
}

Result<> Store::check_budget(std::uint64_t arena_bytes, std::uint64_t versions) const {
  const std::uint64_t needed = arena_bytes * versions;
  if (options_.memory_bytes != 0 && needed > options_.memory_bytes)
    return fail(
        ErrorCode::kResourceExhausted,
        fmt::format("{} versions of {} bytes need {} bytes, host_memory allows {}; raise it "
                    "or keep fewer versions",
                    versions, arena_bytes, needed, options_.memory_bytes));
  return {};
}

Result<> Store::reserve(std::uint64_t arena_bytes, std::uint64_t count) {
  WSYNC_TRY(check_budget(arena_bytes, count));
  drop_unused_arenas(arena_bytes);
  const auto have = std::ranges::count_if(
      own_, [&](const auto& own) { return own->arena.data_bytes() == arena_bytes; });
  for (auto i = static_cast<std::uint64_t>(have); i < count; ++i) {
    auto made = make_own_arena(arena_bytes);
    if (!made) return fail(std::move(made).error());
  }
  return {};
}

Result<> Store::may_begin(const StagingJob& job) const {
  const Version version = version_of(job.identity);
  if (arriving_)
    return fail(ErrorCode::kBusy, fmt::format("version {} is arriving; abort it first",
                                              version_of(arriving_->job.identity).to_string()));
  const auto held = find(version);
  if (!held) return {};
  const bool is_same = held->digests().root == job.identity.content;
  return fail(ErrorCode::kRefused,
              fmt::format("version {} is held already, with {} content {}; a version never names "
                          "two different byte strings",
                          version.to_string(), is_same ? "the same" : "another",
                          held->digests().root.to_string()));
}

Result<> Store::begin(StagingJob job, OnStaged on_staged) {
  WSYNC_TRY(may_begin(job));
  drop_unused_arenas(0);
  const std::uint64_t needed = bytes() + job.plan->arena_bytes();
  if (options_.memory_bytes != 0 && needed > options_.memory_bytes)
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("version {} and what is held need {} bytes, host_memory allows {}",
                            version_of(job.identity).to_string(), needed, options_.memory_bytes));
  ++generation_;
  arriving_.emplace(Arriving{.job = std::move(job), .on_staged = std::move(on_staged)});
  return {};
}

Result<Destination> Store::begin_own(StagingJob job, OnStaged on_staged) {
  WSYNC_TRY(may_begin(job));
  auto own = take_own_arena(job);
  if (!own) return fail(std::move(own).error());
  ++generation_;
  arriving_.emplace(
      Arriving{.job = std::move(job), .on_staged = std::move(on_staged), .own = *own});
  start_verifier((*own)->arena.data());
  return Destination{.data = std::get<WriteLease>((*own)->lease).data(), .hold = *own};
}

// An own arena whose write lease can be had: nobody in this process points to it, and no engine
// holds a read lease. Else a new one.
Result<std::shared_ptr<OwnArena>> Store::take_own_arena(const StagingJob& job) {
  const std::uint64_t arena_bytes = job.plan->arena_bytes();
  for (const auto& own : own_) {
    if (own.use_count() != 1 || own->arena.data_bytes() != arena_bytes) continue;
    own->lease = std::monostate{};
    auto lease = own->arena.try_write_lease(job.identity);
    if (!lease) continue;
    own->lease.emplace<WriteLease>(std::move(*lease));
    return own;
  }
  drop_unused_arenas(arena_bytes);
  auto made = make_own_arena(arena_bytes);
  if (!made) return made;
  auto lease = (*made)->arena.try_write_lease(job.identity);
  if (!lease) return fail(std::move(lease).error());
  (*made)->lease.emplace<WriteLease>(std::move(*lease));
  return made;
}

Result<std::shared_ptr<OwnArena>> Store::make_own_arena(std::uint64_t arena_bytes) {
  const std::uint64_t needed = bytes() + arena_bytes;
  if (options_.memory_bytes != 0 && needed > options_.memory_bytes)
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("one more version of {} bytes needs {} bytes, host_memory allows {}; "
                            "a version that engines still map counts until they let it go",
                            arena_bytes, needed, options_.memory_bytes));
  auto arena = SharedArena::create({.name = options_.name,
                                    .data_bytes = arena_bytes,
                                    .huge_pages = options_.huge_pages,
                                    .threads = options_.verify_threads,
                                    .numa_node = options_.numa_node,
                                    .on_unplaced = [this](const Error& why) { not_placed(why); }});
  if (!arena) return fail(std::move(arena).error());
  own_.push_back(std::make_shared<OwnArena>(OwnArena{.arena = std::move(*arena), .lease = {}}));
  return own_.back();
}

void Store::not_placed(const Error& why) {
  if (std::exchange(said_not_placed_, true)) return;
  log_warning(
      "own arenas are where the system puts them, not on the NUMA node of the GPUs: {}; copies to "
      "them may be slower",
      why.message());
}

// Free arenas of another size belong to an earlier model.
void Store::drop_unused_arenas(std::uint64_t except_bytes) {
  std::erase_if(own_, [&](const auto& own) {
    return own.use_count() == 1 && own->arena.data_bytes() != except_bytes;
  });
}

void Store::start_verifier(std::span<const std::byte> data) {
  const StagingJob& job = arriving_->job;
  arriving_->verifier = std::make_unique<Verifier>(
      *pool_, post_,
      VerifierJob{.manifest = job.manifest,
                  .plan = job.plan,
                  .data = data,
                  .expected = job.identity.content,
                  .also = job.also,
                  .digested = job.digested},
      [this, alive = alive_, generation = generation_](Result<ContentDigests> verdict) {
        if (*alive && arriving_ && generation == generation_) finish(std::move(verdict));
      });
}

void Store::bucket_arrived(std::uint64_t bucket) {
  if (arriving_ && arriving_->own) arriving_->verifier->bucket_arrived(bucket);
}

void Store::all_arrived() {
  if (arriving_ && arriving_->own) arriving_->verifier->all_arrived();
}

void Store::view_arrived(ArenaView view) {
  if (!arriving_ || arriving_->own || arriving_->view) return;
  const BucketPlan& plan = *arriving_->job.plan;
  arriving_->view.emplace(std::move(view));
  if (arriving_->view->data().size() != plan.arena_bytes()) {
    const auto sentence = fmt::format("the arena has {} bytes of data, the version needs {}",
                                      arriving_->view->data().size(), plan.arena_bytes());
    return post_([this, alive = alive_, generation = generation_, sentence] {
      if (*alive && arriving_ && generation == generation_)
        finish(fail(ErrorCode::kRefused, sentence));
    });
  }
  start_verifier(arriving_->view->data());
  for (std::uint64_t bucket = 0; bucket < plan.bucket_count(); ++bucket)
    arriving_->verifier->bucket_arrived(bucket);
  arriving_->verifier->all_arrived();
}

void Store::finish(Result<ContentDigests> verdict) {
  Arriving arrived = std::move(*arriving_);
  arriving_.reset();
  arrived.verifier.reset();
  const Version version = version_of(arrived.job.identity);
  if (verdict && arrived.own) {
    std::get<WriteLease>(std::move(arrived.own->lease)).complete(verdict->root);
    if (auto lease = arrived.own->arena.try_read_lease())
      arrived.own->lease.emplace<ReadLease>(std::move(*lease));
    else
      verdict = fail(lease.error());  // it takes a descriptor
  }
  if (!verdict) {
    if (arrived.own) arrived.own->lease = std::monostate{};
    arrived.own.reset();
    arrived.view.reset();
    return arrived.on_staged(
        fail(verdict.error().with_context("stage version " + version.to_string())));
  }
  arrived.job.identity.content = verdict->root;
  HeldVersion::Memory memory = arrived.own ? HeldVersion::Memory(std::move(arrived.own))
                                           : HeldVersion::Memory(std::move(*arrived.view));
  const auto held = HeldVersion::make(arrived.job, std::move(*verdict), std::move(memory), pool_);
  held_.emplace(version, held);
  arrived.on_staged(held);
}

void Store::abort() {
  if (!arriving_) return;
  arriving_->verifier.reset();
  if (arriving_->own) arriving_->own->lease = std::monostate{};
  arriving_.reset();
}

std::optional<Version> Store::arriving() const {
  return arriving_ ? std::optional(version_of(arriving_->job.identity)) : std::nullopt;
}
std::uint64_t Store::verified_bytes() const {
  return arriving_ && arriving_->verifier ? arriving_->verifier->verified_bytes() : 0;
}
std::vector<Version> Store::versions_held() const {
  std::vector<Version> versions;
  for (const auto& [version, held] : held_) versions.push_back(version);
  return versions;
}
std::shared_ptr<const HeldVersion> Store::find(Version version) const {
  const auto found = held_.find(version);
  return found == held_.end() ? nullptr : found->second;
}

std::uint64_t Store::bytes() const {
  std::uint64_t total = 0;
  for (const auto& own : own_) total += own->arena.data_bytes();
  for (const auto& [version, held] : held_)
    if (held->is_mapped()) total += held->data().size();
  if (arriving_ && !arriving_->own) total += arriving_->job.plan->arena_bytes();
  return total;
}

Result<> Store::recheck(Version version, std::function<void(Result<>)> on_checked) {
  const auto held = find(version);
  if (!held) return fail(ErrorCode::kNotFound, version.to_string() + " is not held");
  auto& verifier = rechecks_[version];
  if (verifier) return fail(ErrorCode::kBusy, version.to_string() + " is being checked");
  verifier = std::make_unique<Verifier>(
      *pool_, post_,
      VerifierJob{.manifest = held->manifest(),
                  .plan = held->plan(),
                  .data = held->data(),
                  .expected = held->digests().root,
                  .also = {}},
      [this, alive = alive_, version, weak = std::weak_ptr(held),
       on_checked = std::move(on_checked)](const Result<ContentDigests>& verdict) {
        const auto checked = weak.lock();
        if (!*alive || !checked || checked != find(version)) return;
        rechecks_.erase(version);
        on_checked(verdict ? Result<>{} : fail(verdict.error()));
      });
  for (std::uint64_t bucket = 0; bucket < held->plan()->bucket_count(); ++bucket)
    verifier->bucket_arrived(bucket);
  verifier->all_arrived();
  return {};
}

void Store::release(Version version) {
  rechecks_.erase(version);  // first: it stops reading before the memory goes
  held_.erase(version);
}
void Store::trim() {
  std::erase_if(own_, [](const auto& own) { return own.use_count() == 1; });
}

}  // namespace wsync::staging
