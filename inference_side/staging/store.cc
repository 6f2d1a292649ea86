#include "inference_side/staging/store.h"

#include <algorithm>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/huge_pages.h"
#include "shared/base/log.h"
#include "shared/base/memory_limit.h"
#include "shared/base/planted.h"
#include "shared/weights/leaf_check.h"

namespace wsync::staging {

Store::Store(StoreOptions options, Post post)
    : options_(std::move(options)),
      post_(std::move(post)),
      memory_(std::make_shared<ThreadPool>(1)),
      alive_(std::make_shared<bool>(true)),
      checker_(std::make_unique<ThreadPool>(1)),
      changer_(std::make_unique<ThreadPool>(1)) {}

Store::~Store() {
  *alive_ = false;
  abort();
  for (auto& [version, recheck] : rechecks_) recheck.request_stop();
  stop_changing_.request_stop();
}

// Destroys the object on the memory thread, because unmapping and freeing would block the loop.
template <class T>
void Store::destroy_later(T what) {
  memory_->post([last = std::make_shared<T>(std::move(what))] {});
}

Result<> Store::check_budget(std::uint64_t arena_bytes, std::uint64_t versions) const {
  const std::uint64_t needed = arena_bytes * versions;
  if (options_.memory_bytes != 0 && needed > options_.memory_bytes)
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("{} versions of {} bytes need {} bytes, but host_memory allows {}; "
                            "raise host_memory or keep fewer versions",
                            versions, arena_bytes, needed, options_.memory_bytes));
  return {};
}

// Whether no version of the store and no engine uses the arena.
bool Store::is_free(OwnArena& own) {
  own.lease = std::monostate{};
  return own.arena.try_write_lease(own.arena.identity()).has_value();
}

bool Store::fits_beside(std::uint64_t arena_bytes) const {
  std::uint64_t used = bytes() - spare_patch_bytes_;
  bool has_free_arena = false;
  for (const auto& own : own_) {
    // An engine may still read an arena that the store has released.
    if (own.use_count() != 1 || !is_free(*own)) continue;
    used -= own->arena.data_bytes();
    has_free_arena = has_free_arena || own->arena.data_bytes() == arena_bytes;
  }
  if (options_.memory_bytes != 0 && used + arena_bytes > options_.memory_bytes) return false;
  if (has_free_arena || own_.empty()) return true;
  if (options_.huge_pages == HugePages::kExplicit) {
    // An arena of the pool takes none of the memory that is available otherwise.
    const ArenaOptions arena{.data_bytes = arena_bytes, .huge_pages = options_.huge_pages};
    const auto pool = huge_page_pool();
    if (pool && pool->available() >= huge_pages_of(arena.file_bytes())) return true;
  }
  const auto available = available_memory();
  // A machine without room for two more would be full with one.
  return available && available->bytes >= 2 * arena_bytes;
}

bool Store::make_room(std::uint64_t more_bytes) {
  const auto fits = [&](std::uint64_t used) {
    return options_.memory_bytes == 0 || used + more_bytes <= options_.memory_bytes;
  };
  if (!fits(bytes()) && fits(bytes() - spare_patch_bytes_)) give_up_patches_();
  return fits(bytes());
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
              fmt::format("version {} is already held, with {} content {}; a version never names "
                          "two different byte strings",
                          version.to_string(), is_same ? "the same" : "another",
                          held->digests().root.to_string()));
}

Result<> Store::begin(StagingJob job, OnStaged on_staged) {
  WSYNC_TRY(may_begin(job));
  drop_unused_arenas(0);
  const std::uint64_t arena_bytes = job.plan->arena_bytes();
  if (!make_room(arena_bytes))
    return fail(
        ErrorCode::kResourceExhausted,
        fmt::format(
            "version {} and the versions already held need {} bytes, but host_memory allows {}",
            version_of(job.identity).to_string(), bytes() + arena_bytes, options_.memory_bytes));
  ++generation_;
  arriving_.emplace(Arriving{
      .job = std::move(job), .on_staged = std::move(on_staged), .bytes_beside = arena_bytes});
  return {};
}

Result<> Store::begin_own(StagingJob job, OnMemory on_memory, OnStaged on_staged) {
  WSYNC_TRY(may_begin(job));
  ++generation_;
  arriving_.emplace(Arriving{
      .job = std::move(job), .on_staged = std::move(on_staged), .on_memory = std::move(on_memory)});
  // When this task has passed through the memory thread, everything released earlier is free, and
  // its arena can be reused.
  memory_->post([this, post = post_, alive = alive_, generation = generation_] {
    post([this, alive, generation] {
      if (*alive && arriving_ && generation == generation_) find_own_arena();
    });
  });
  return {};
}

void Store::find_own_arena() {
  for (const auto& own : own_)
    if (take_own_arena(own)) return drop_spare_arenas();
  const std::uint64_t arena_bytes = arriving_->job.plan->arena_bytes();
  drop_unused_arenas(arena_bytes);
  if (!make_room(arena_bytes))
    return no_memory(
        Error(ErrorCode::kResourceExhausted,
              fmt::format("one more version of {} bytes needs {} bytes, but host_memory allows {}; "
                          "a version that engines still map counts until they release it",
                          arena_bytes, bytes() + arena_bytes, options_.memory_bytes)));
  make_own_arena(arena_bytes);
}

// Locks the arena for a version, if it has this size, no pointer to it exists in this process and
// no engine holds a read lease. Returns whether it did.
bool Store::lock_free_arena(const std::shared_ptr<OwnArena>& own, std::uint64_t arena_bytes,
                            const ArenaIdentity& identity) {
  if (own.use_count() != 1 || own->arena.data_bytes() != arena_bytes) return false;
  own->lease = std::monostate{};
  auto lease = own->arena.try_write_lease(identity);
  if (!lease) return false;
  own->lease.emplace<WriteLease>(std::move(*lease));
  return true;
}

// Takes the arena for the version being staged, if it is free. Returns whether it did.
bool Store::take_own_arena(const std::shared_ptr<OwnArena>& own) {
  const StagingJob& job = arriving_->job;
  if (!lock_free_arena(own, job.plan->arena_bytes(), job.identity)) return false;
  arriving_->own = own;
  expect_sums();
  const OnMemory on_memory = std::exchange(arriving_->on_memory, {});
  on_memory(Destination{.data = std::get<WriteLease>(own->lease).data(), .hold = own});
  return true;
}

void Store::expect_sums() {
  arriving_->sums.resize(arriving_->job.arriving_leaves().all().size());
  arriving_->arrived.resize(arriving_->job.transfer_plan().bucket_count());
}

Result<> Store::begin_changes(StagingJob job, Version base, OnStaged on_staged) {
  WSYNC_TRY(may_begin(job));
  const auto held = find(base);
  if (!held || !held->is_complete() || !job.blocks ||
      held->identity().layout != job.identity.layout ||
      held->plan()->bucket_bytes() != job.plan->bucket_bytes())
    return fail(ErrorCode::kRefused,
                fmt::format("{} cannot be held as what changes from {}: that is not here complete, "
                            "and with the same layout and buckets",
                            version_of(job.identity).to_string(), base.to_string()));
  ++generation_;
  patch::VersionChanges changes{
      .base = base, .leaves = job.leaves, .blocks = job.blocks, .buckets = {}};
  changes.buckets.resize(job.plan->bucket_count());
  arriving_.emplace(Arriving{.job = std::move(job), .on_staged = std::move(on_staged)});
  arriving_->changes = std::move(changes);
  expect_sums();
  return {};
}

void Store::changes_arrived(std::uint64_t bucket, std::span<const WordSum> sums,
                            std::shared_ptr<const Bytes> changes) {
  if (!arriving_ || !arriving_->changes || bucket >= arriving_->arrived.size()) return;
  if (arriving_->arrived[bucket]) return;
  bucket_arrived(bucket, sums);
  if (arriving_->arrived[bucket]) arriving_->changes->buckets[bucket] = std::move(changes);
}

void Store::make_own_arena(std::uint64_t arena_bytes) {
  arriving_->bytes_beside = arena_bytes;
  make_arena(
      arena_bytes, arriving_->making.get_token(),
      [this, generation = generation_](Making& making) { own_arena_made(making, generation); });
}

void Store::make_arena(std::uint64_t arena_bytes, std::stop_token stop,
                       std::function<void(Making&)> on_made) {
  auto make = [this, options = options_, arena_bytes, post = post_, alive = alive_,
               stop = std::move(stop), on_made = std::move(on_made)] {
    auto making = std::make_shared<Making>();
    making->arena =
        SharedArena::create({.name = options.name,
                             .data_bytes = arena_bytes,
                             .huge_pages = options.huge_pages,
                             .threads = options.threads,
                             .numa_node = options.numa_node,
                             .on_fallback = [&](const Error& why) { making->fallback = why; },
                             .stop = stop});
    post([this, alive, making, on_made] {
      if (!*alive) return;
      if (making->fallback) say_fallback(*making->fallback);
      on_made(*making);
    });
  };
  if (planted("arena_made_on_the_loop"))
    make();
  else
    memory_->post(std::move(make));
}

void Store::own_arena_made(Making& making, std::uint64_t generation) {
  const bool is_wanted = arriving_ && generation == generation_;
  if (is_wanted) arriving_->bytes_beside = 0;
  if (!making.arena) {
    if (is_wanted) no_memory(making.arena.error());
    return;
  }
  // Keep an arena even if no version needs it any more: the next version can use it.
  own_.push_back(
      std::make_shared<OwnArena>(OwnArena{.arena = std::move(*making.arena), .lease = {}}));
  if (is_wanted && !take_own_arena(own_.back()))
    no_memory(Error(ErrorCode::kInternal, "an arena that was just made is in use"));
}

void Store::no_memory(const Error& why) {
  const Arriving refused = std::move(*std::exchange(arriving_, std::nullopt));
  refused.on_memory(
      fail(why.with_context("stage version " + version_of(refused.job.identity).to_string())));
}

void Store::say_fallback(const Error& why) {
  if (std::exchange(said_fallback_, true)) return;
  log_warning(
      "own arenas get other memory than memory.huge_pages or memory.numa_node ask for: {}; copies "
      "may be slower",
      why.message());
}

// Free arenas of another size belong to an earlier model and would never be reused.
void Store::drop_unused_arenas(std::uint64_t except_bytes) {
  const auto unused = std::ranges::partition(own_, [&](const auto& own) {
    return own.use_count() != 1 || own->arena.data_bytes() == except_bytes;
  });
  free_arenas(unused.begin());
}

void Store::free_arenas(std::vector<std::shared_ptr<OwnArena>>::iterator first) {
  if (first == own_.end()) return;
  std::for_each(first, own_.end(), [this](auto& own) { destroy_later(std::move(own)); });
  own_.erase(first, own_.end());
  options_.on_freed();
}

// An engine that is late or hangs keeps the arena that it reads, so another one is made. When it
// has continued, only one free arena is kept, because the engine may be late again.
void Store::drop_spare_arenas() {
  if (planted("spare_arenas_are_kept")) return;
  const std::uint64_t bytes = arriving_->job.plan->arena_bytes();
  bool has_spare = false;
  const auto spare = std::ranges::partition(own_, [&](const auto& own) {
    if (own.use_count() != 1 || !is_free(*own)) return true;
    return own->arena.data_bytes() == bytes && !std::exchange(has_spare, true);
  });
  free_arenas(spare.begin());
}

std::uint64_t Store::release_unused() {
  if (arriving_) return 0;
  const std::uint64_t before = bytes();
  const auto unused = std::ranges::partition(
      own_, [](const auto& own) { return own.use_count() != 1 || !is_free(*own); });
  free_arenas(unused.begin());
  return before - bytes();
}

void Store::bucket_arrived(std::uint64_t bucket, std::span<const WordSum> sums) {
  if (!arriving_ || bucket >= arriving_->arrived.size()) return;  // or a mapped arena
  const StagingJob& job = arriving_->job;
  const LeafTable& leaves = job.arriving_leaves();
  if (sums.size() != leaves.bucket(bucket).size() || arriving_->arrived[bucket]) return;
  arriving_->arrived[bucket] = true;
  arriving_->arrived_bytes += job.transfer_plan().bucket_size(bucket);
  std::ranges::copy(sums,
                    arriving_->sums.begin() + static_cast<std::ptrdiff_t>(leaves.first(bucket)));
}

void Store::all_arrived() {
  if (!arriving_ || arriving_->arrived.empty()) return;
  arriving_->has_arrived = true;
  compare_sums();
}

void Store::expect_content(const Digest& content) {
  if (!arriving_ || arriving_->job.identity.content != Digest{} || content == Digest{}) return;
  arriving_->job.identity.content = content;
  compare_sums();
}

void Store::view_arrived(ArenaView view) {
  if (!arriving_ || arriving_->on_memory || !arriving_->arrived.empty() || arriving_->view) return;
  arriving_->view.emplace(std::move(view));
  arriving_->is_verified = !arriving_->view->is_protected();
  arriving_->has_arrived = true;
  compare_sums();
}

// On the memory thread, which outlives the view: abort() destroys it there.
void Store::compare_sums() {
  const Arriving& arriving = *arriving_;
  const bool is_known =
      arriving.job.identity.content != Digest{} || planted("content_digest_not_awaited");
  if (!arriving.has_arrived || !is_known) return;
  const StagingJob& job = arriving.job;
  std::optional<Error> problem;
  if (arriving.view && arriving.view->data().size() != job.plan->arena_bytes())
    problem.emplace(ErrorCode::kRefused,
                    fmt::format("the arena has {} bytes of data, but the version needs {}",
                                arriving.view->data().size(), job.plan->arena_bytes()));
  if (const auto missing = std::ranges::find(arriving.arrived, false);
      missing != arriving.arrived.end())
    problem.emplace(ErrorCode::kDigestMismatch,
                    fmt::format("bucket {} of {} has not arrived",
                                missing - arriving.arrived.begin(), arriving.arrived.size()));
  std::vector<WordSum> known = arriving.sums;
  if (job.transfer_leaves && !known.empty())
    known = whole_leaves(*job.manifest, *job.transfer_leaves, known);
  std::span<const std::byte> data;  // whose sums are not known, because its writer may change it
  if (arriving.view && arriving.view->is_protected()) {
    const auto sums = arriving.view->leaf_sums();
    known.assign(sums.begin(), sums.end());
  } else if (arriving.view) {
    data = arriving.view->data();
  }
  memory_->post([this, post = post_, alive = alive_, generation = generation_, problem, job,
                 known = std::move(known), data, threads = options_.threads,
                 stop = arriving.making.get_token()] {
    const auto judge = [&]() -> Result<ContentDigests> {
      if (problem) return fail(*problem);
      auto digests = digests_of_leaves(
          *job.manifest,
          data.empty() ? known : WSYNC_TRY(sum_leaves(*job.leaves, data, threads, stop)));
      if (!digests || digests->root == job.identity.content ||
          planted("content_digest_not_compared") || planted("content_digest_not_awaited"))
        return digests;
      return fail(ErrorCode::kDigestMismatch,
                  fmt::format("the bytes have content digest {}, expected {} as announced",
                              digests->root.to_string(), job.identity.content.to_string()));
    };
    auto verdict = std::make_shared<Result<ContentDigests>>(judge());
    post([this, alive, generation, verdict] {
      if (*alive && arriving_ && generation == generation_) finish(std::move(*verdict));
    });
  });
}

void Store::finish(Result<ContentDigests> verdict) {
  Arriving arrived = std::move(*arriving_);
  arriving_.reset();
  const Version version = version_of(arrived.job.identity);
  if (verdict && arrived.own) {
    std::get<WriteLease>(std::move(arrived.own->lease)).complete(verdict->root);
    if (auto lease = arrived.own->arena.try_read_lease())
      arrived.own->lease.emplace<ReadLease>(std::move(*lease));
    else
      verdict = fail(lease.error());  // a lease needs a descriptor
  }
  if (!verdict) {
    if (arrived.own) arrived.own->lease = std::monostate{};
    arrived.own.reset();
    if (arrived.view) memory_->post([mapping = std::move(*arrived.view).end()] {});
    return arrived.on_staged(
        fail(verdict.error().with_context("stage version " + version.to_string())));
  }
  arrived.job.identity.content = verdict->root;
  HeldVersion::Memory memory = NoMemory{};
  if (arrived.own) memory = std::move(arrived.own);
  if (arrived.view) memory = std::move(*arrived.view);
  if (arrived.changes) changes_.insert_or_assign(version, std::move(*arrived.changes));
  const auto held = HeldVersion::make(arrived.job, std::move(*verdict), std::move(memory),
                                      arrived.is_verified, memory_);
  held_.emplace(version, held);
  arrived.on_staged(held);
}

void Store::abort() {
  if (!arriving_) return;
  Arriving given_up = std::move(*std::exchange(arriving_, std::nullopt));
  given_up.making.request_stop();
  given_up.on_staged = {};  // destroyed here, because the callbacks belong to the loop's thread
  given_up.on_memory = {};
  if (given_up.own) given_up.own->lease = std::monostate{};
  destroy_later(std::move(given_up));
}

std::optional<Version> Store::arriving() const {
  return arriving_ ? std::optional(version_of(arriving_->job.identity)) : std::nullopt;
}
std::uint64_t Store::arrived_bytes() const { return arriving_ ? arriving_->arrived_bytes : 0; }
std::vector<Version> Store::versions_held() const {
  std::vector<Version> versions;
  for (const auto& [version, held] : held_) versions.push_back(version);
  return versions;
}
std::shared_ptr<const HeldVersion> Store::find(Version version) const {
  const auto found = held_.find(version);
  return found == held_.end() ? nullptr : found->second;
}

const patch::VersionChanges* Store::changes_of(Version version) const {
  const auto found = changes_.find(version);
  return found == changes_.end() ? nullptr : &found->second;
}

std::uint64_t Store::room() const {
  const auto available = available_memory();
  // What is left of the machine's memory is for others, too.
  std::uint64_t room = available ? available->bytes / 2 : 0;
  const std::uint64_t used = bytes();
  if (options_.memory_bytes != 0)
    room = std::min(room, options_.memory_bytes > used ? options_.memory_bytes - used : 0);
  return room;
}

std::uint64_t Store::bytes() const {
  std::uint64_t total = patch_bytes_;
  for (const auto& own : own_) total += own->arena.data_bytes();
  for (const auto& [version, held] : held_)
    if (held->is_mapped()) total += held->data().size();
  for (const auto& [version, changes] : changes_) total += changes.bytes();
  if (arriving_) total += arriving_->bytes_beside;
  if (arriving_ && arriving_->changes) total += arriving_->changes->bytes();
  return total + completing_bytes_;
}

Result<> Store::recheck(Version version, std::function<void(Result<>)> on_checked) {
  const auto held = find(version);
  if (!held || !held->is_complete())
    return fail(ErrorCode::kNotFound, version.to_string() + " is not held");
  if (rechecks_.contains(version))
    return fail(ErrorCode::kBusy, version.to_string() + " is being checked");
  std::stop_source stop;
  rechecks_[version] = stop;
  // Without the version itself, whose lease ends when it is released. The memory goes on the memory
  // thread, like all other.
  auto hold = std::make_shared<std::shared_ptr<const void>>(held->hold());
  checker_->post([this, memory = memory_, post = post_, alive = alive_, hold, version, stop,
                  on_checked = std::move(on_checked), leaves = held->leaves(), data = held->data(),
                  threads = options_.threads] {
    auto sums = std::make_shared<Result<std::vector<WordSum>>>(
        sum_leaves(*leaves, data, threads, stop.get_token()));
    memory->post([released = std::exchange(*hold, nullptr)] {});
    post([this, alive, version, stop, on_checked, sums] {
      const auto checked = *alive && !stop.stop_requested() ? find(version) : nullptr;
      if (!checked) return;
      rechecks_.erase(version);
      on_checked(checked->compare(*sums));
    });
  });
  return {};
}

void Store::release(Version version) {
  if (auto recheck = rechecks_.extract(version)) recheck.mapped().request_stop();
  changes_.erase(version);
  held_.erase(version);
}

}  // namespace wsync::staging
