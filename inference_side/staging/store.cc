#include "inference_side/staging/store.h"

#include <algorithm>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/memory_limit.h"
#include "shared/base/planted.h"

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

HeldVersion::HeldVersion(const StagingJob& job, ContentDigests digests, Memory memory,
                         bool is_verified)
    : identity_(job.identity),
      manifest_(job.manifest),
      plan_(job.plan),
      digests_(std::move(digests)),
      memory_(std::move(memory)),
      data_(data_of(memory_)),
      is_verified_(is_verified) {}

std::shared_ptr<const HeldVersion> HeldVersion::make(const StagingJob& job, ContentDigests digests,
                                                     Memory memory, bool is_verified,
                                                     const std::shared_ptr<ThreadPool>& unmapper) {
  const auto unmap = [unmapper = std::weak_ptr(unmapper)](HeldVersion* held) {
    const std::unique_ptr<HeldVersion> owned(held);
    auto* view = std::get_if<ArenaView>(&owned->memory_);
    const auto pool = unmapper.lock();
    if (view == nullptr || !pool) return;
    // A shared pointer, because tasks must be copyable. The arena is unmapped when the task is
    // destroyed, whether it was executed or dropped.
    pool->post([mapping = std::move(*view).end()] {});
  };
  return {new HeldVersion(job, std::move(digests), std::move(memory), is_verified), unmap};
}

Result<> HeldVersion::verify(unsigned threads) const {
  const std::lock_guard lock(verify_mutex_);
  if (is_verified_) return {};
  std::atomic<std::size_t> next = 0;
  std::atomic<std::size_t> differs = manifest_->size();  // the first tensor that does
  const auto compare = [&] {
    for (std::size_t i = next++; i < manifest_->size(); i = next++) {
      const auto tensor = static_cast<std::uint32_t>(i);
      const auto pieces = plan_->tensor_pieces(tensor);
      const std::uint64_t begin = pieces.empty() ? 0 : plan_->arena_offset(pieces.front());
      const auto bytes = data_.subspan(begin, manifest_->byte_size(i));
      if (tensor_digest(manifest_->tensor(i).name, bytes) == digests_.tensors[i]) continue;
      std::size_t first = differs;
      while (i < first && !differs.compare_exchange_weak(first, i)) {
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (unsigned i = 1; i < threads; ++i) helpers.emplace_back(compare);
    compare();
  }
  if (const std::size_t i = differs; i < manifest_->size())
    return fail(ErrorCode::kDigestMismatch,
                fmt::format("tensor '{}' of version {} does not have the bytes that its trainer "
                            "wrote: the arena was changed after it was complete",
                            manifest_->tensor(i).name, version().to_string()));
  is_verified_ = true;
  return {};
}

Version HeldVersion::version() const noexcept { return version_of(identity_); }

Result<UniqueFd> HeldVersion::share() const {
  if (const auto* view = std::get_if<ArenaView>(&memory_)) return view->share();
  return std::get<std::shared_ptr<OwnArena>>(memory_)->arena.share();
}

// The result of an allocation on the memory thread.
struct Store::Making {
  Result<SharedArena> arena = fail(ErrorCode::kCancelled, "not made");
  std::optional<Error> unplaced;
};

Store::Store(StoreOptions options, Post post)
    : options_(std::move(options)),
      post_(std::move(post)),
      notifier_(std::make_unique<ThreadPool>(1)),
      pool_(std::make_shared<ThreadPool>(options_.verify_threads, options_.verify_nice)),
      memory_(std::make_shared<ThreadPool>(1)),
      alive_(std::make_shared<bool>(true)) {}

Store::~Store() {
  *alive_ = false;
  abort();
}

// Destroys the object on the memory thread, because unmapping, freeing and waiting for a verifier
// would block the loop.
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
  std::uint64_t used = bytes();
  bool has_free_arena = false;
  for (const auto& own : own_) {
    // An engine may still read an arena that the store has released.
    if (own.use_count() != 1 || !is_free(*own)) continue;
    used -= own->arena.data_bytes();
    has_free_arena = has_free_arena || own->arena.data_bytes() == arena_bytes;
  }
  if (options_.memory_bytes != 0 && used + arena_bytes > options_.memory_bytes) return false;
  if (has_free_arena || own_.empty()) return true;
  const auto available = available_memory();
  // A machine without room for two more would be full with one.
  return available && available->bytes >= 2 * arena_bytes;
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
  const std::uint64_t needed = bytes() + job.plan->arena_bytes();
  if (options_.memory_bytes != 0 && needed > options_.memory_bytes)
    return fail(
        ErrorCode::kResourceExhausted,
        fmt::format(
            "version {} and the versions already held need {} bytes, but host_memory allows {}",
            version_of(job.identity).to_string(), needed, options_.memory_bytes));
  ++generation_;
  const std::uint64_t arena_bytes = job.plan->arena_bytes();
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
  const std::uint64_t needed = bytes() + arena_bytes;
  if (options_.memory_bytes != 0 && needed > options_.memory_bytes)
    return no_memory(
        Error(ErrorCode::kResourceExhausted,
              fmt::format("one more version of {} bytes needs {} bytes, but host_memory allows {}; "
                          "a version that engines still map counts until they release it",
                          arena_bytes, needed, options_.memory_bytes)));
  make_own_arena(arena_bytes);
}

// Takes the arena for the version being staged, if no pointer to it exists in this process and no
// engine holds a read lease. Returns whether it did.
bool Store::take_own_arena(const std::shared_ptr<OwnArena>& own) {
  const StagingJob& job = arriving_->job;
  if (own.use_count() != 1 || own->arena.data_bytes() != job.plan->arena_bytes()) return false;
  own->lease = std::monostate{};
  auto lease = own->arena.try_write_lease(job.identity);
  if (!lease) return false;
  own->lease.emplace<WriteLease>(std::move(*lease));
  arriving_->own = own;
  start_verifier(own->arena.data());
  const OnMemory on_memory = std::exchange(arriving_->on_memory, {});
  on_memory(Destination{.data = std::get<WriteLease>(own->lease).data(), .hold = own});
  return true;
}

void Store::make_own_arena(std::uint64_t arena_bytes) {
  arriving_->bytes_beside = arena_bytes;
  auto make = [this, options = options_, arena_bytes, post = post_, alive = alive_,
               generation = generation_, stop = arriving_->making.get_token()] {
    auto making = std::make_shared<Making>();
    making->arena =
        SharedArena::create({.name = options.name,
                             .data_bytes = arena_bytes,
                             .huge_pages = options.huge_pages,
                             .threads = options.verify_threads,
                             .numa_node = options.numa_node,
                             .on_unplaced = [&](const Error& why) { making->unplaced = why; },
                             .stop = stop});
    post([this, alive, making, generation] {
      if (*alive) own_arena_made(*making, generation);
    });
  };
  if (planted("arena_made_on_the_loop"))
    make();
  else
    memory_->post(std::move(make));
}

void Store::own_arena_made(Making& making, std::uint64_t generation) {
  if (making.unplaced) not_placed(*making.unplaced);
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

void Store::not_placed(const Error& why) {
  if (std::exchange(said_not_placed_, true)) return;
  log_warning(
      "own arenas are not allocated on the NUMA node of the GPUs, but where the system places "
      "them: {}; copies to the GPUs may be slower",
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

std::shared_ptr<Verifier> Store::make_verifier(VerifierJob job, Verifier::OnFinished on_finished) {
  const Post notify = [notifier = notifier_.get(), post = post_](std::function<void()> work,
                                                                 std::source_location made) {
    notifier->post([post, work = std::move(work), made] { post(work, made); });
  };
  return std::make_shared<Verifier>(*pool_, notify, std::move(job), std::move(on_finished));
}

void Store::verify_all(const std::shared_ptr<Verifier>& verifier, std::uint64_t buckets) {
  memory_->post([verifier, buckets] {
    for (std::uint64_t bucket = 0; bucket < buckets; ++bucket) verifier->bucket_arrived(bucket);
    verifier->all_arrived();
  });
}

void Store::start_verifier(std::span<const std::byte> data) {
  const StagingJob& job = arriving_->job;
  arriving_->verifier = make_verifier(
      {.manifest = job.manifest,
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
  if (!arriving_ || !arriving_->own) return;
  memory_->post([verifier = arriving_->verifier, bucket] { verifier->bucket_arrived(bucket); });
}

void Store::all_arrived() {
  if (!arriving_ || !arriving_->own) return;
  memory_->post([verifier = arriving_->verifier] { verifier->all_arrived(); });
}

void Store::view_arrived(ArenaView view) {
  if (!arriving_ || arriving_->on_memory || arriving_->own || arriving_->view) return;
  const BucketPlan& plan = *arriving_->job.plan;
  arriving_->view.emplace(std::move(view));
  if (arriving_->view->data().size() != plan.arena_bytes()) {
    const auto sentence = fmt::format("the arena has {} bytes of data, but the version needs {}",
                                      arriving_->view->data().size(), plan.arena_bytes());
    return post_([this, alive = alive_, generation = generation_, sentence] {
      if (*alive && arriving_ && generation == generation_)
        finish(fail(ErrorCode::kRefused, sentence));
    });
  }
  if (arriving_->view->is_protected()) return compare_sums();
  start_verifier(arriving_->view->data());
  verify_all(arriving_->verifier, plan.bucket_count());
}

// Instead of the bytes. The memory thread outlives the view, which abort() destroys there.
void Store::compare_sums() {
  arriving_->is_verified = false;
  memory_->post([this, post = post_, alive = alive_, generation = generation_,
                 manifest = arriving_->job.manifest, leaves = arriving_->view->leaf_sums(),
                 expected = arriving_->job.identity.content] {
    auto digests = std::make_shared<Result<ContentDigests>>(digests_of_leaves(*manifest, leaves));
    if (*digests && (*digests)->root != expected && !planted("leaf_sums_not_compared"))
      *digests =
          fail(ErrorCode::kDigestMismatch,
               fmt::format("the sums that came with the arena give content digest {}, expected {} "
                           "as announced",
                           (*digests)->root.to_string(), expected.to_string()));
    post([this, alive, generation, digests] {
      if (*alive && arriving_ && generation == generation_) finish(std::move(*digests));
    });
  });
}

void Store::finish(Result<ContentDigests> verdict) {
  Arriving arrived = std::move(*arriving_);
  arriving_.reset();
  destroy_later(std::move(arrived.verifier));
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
  HeldVersion::Memory memory = arrived.own ? HeldVersion::Memory(std::move(arrived.own))
                                           : HeldVersion::Memory(std::move(*arrived.view));
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
  if (given_up.verifier) given_up.verifier->stop();
  if (given_up.own) given_up.own->lease = std::monostate{};
  destroy_later(std::move(given_up));
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
  if (arriving_) total += arriving_->bytes_beside;
  return total;
}

Result<> Store::recheck(Version version, std::function<void(Result<>)> on_checked) {
  const auto held = find(version);
  if (!held) return fail(ErrorCode::kNotFound, version.to_string() + " is not held");
  if (rechecks_.contains(version))
    return fail(ErrorCode::kBusy, version.to_string() + " is being checked");
  auto verifier =
      make_verifier({.manifest = held->manifest(),
                     .plan = held->plan(),
                     .data = held->data(),
                     .expected = held->digests().root,
                     .also = {}},
                    [this, alive = alive_, version, weak = std::weak_ptr(held),
                     on_checked = std::move(on_checked)](const Result<ContentDigests>& verdict) {
                      const auto checked = weak.lock();
                      if (!*alive || !checked || checked != find(version)) return;
                      destroy_later(std::move(rechecks_.extract(version).mapped()));
                      on_checked(verdict ? Result<>{} : fail(verdict.error()));
                    });
  verify_all(verifier, held->plan()->bucket_count());
  rechecks_[version] = {.hold = held->hold(), .verifier = std::move(verifier)};
  return {};
}

void Store::release(Version version) {
  // Release the check first: the mapping that it reads must be destroyed after it, on the same
  // thread.
  if (auto recheck = rechecks_.extract(version)) {
    recheck.mapped().verifier->stop();
    destroy_later(std::move(recheck.mapped()));
  }
  held_.erase(version);
}

}  // namespace wsync::staging
