// Versions of which only what changes from another one is here, and how they become complete.
#include <algorithm>
#include <utility>

#include "inference_side/staging/lent_arena.h"
#include "inference_side/staging/store.h"
#include "shared/base/fail_point.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"
#include "shared/weights/leaf_check.h"

namespace wsync::staging {

// A version that is being made complete.
struct Store::Completing {
  std::shared_ptr<const HeldVersion> version;  // without memory
  patch::VersionChanges changes;
  bool in_place = false;
  OnCompleted done;
  std::shared_ptr<const HeldVersion> base;  // not in place, or not lent yet: with its memory
  std::shared_ptr<OwnArena> arena;          // that gets the bytes, with its write lease
  Result<patch::ChangedBuckets> back =
      fail(ErrorCode::kCancelled, "not made");  // in place: to the base
  // If the base is in a mapped arena:
  std::function<void()> fetch = nullptr;
  std::optional<LentArena> lent = std::nullopt;  // in place: that arena
  // Of the same, which has neither version, because its trainer has ended while it wrote.
  std::optional<ReadLease> unfinished = std::nullopt;
  bool is_damaged = false;  // what the trainer gave
  bool has_said = false;    // that it is not given
  // The bytes that are copied, and what they may be where they change.
  [[nodiscard]] std::span<const std::byte> source() const {
    return unfinished ? lent->data() : base->data();
  }
  [[nodiscard]] patch::BeforeRule rule() const {
    return unfinished && !planted("unfinished_arena_is_the_base") ? patch::BeforeRule::kRepeat
                                                                  : patch::BeforeRule::kBase;
  }
};

Result<> Store::complete(Version version, bool in_place, std::function<void()> fetch,
                         OnCompleted done) {
  const patch::VersionChanges* changes = changes_of(version);
  auto base = changes == nullptr ? nullptr : find(changes->base);
  if (!base || !base->is_complete())
    return fail(ErrorCode::kNotFound,
                fmt::format("of {} there is nothing that leads from a complete version",
                            version.to_string()));
  auto completing = std::make_shared<Completing>();
  completing->version = find(version);
  completing->changes = *changes;
  completing->in_place = in_place;
  completing->done = std::move(done);
  if (base->is_mapped()) {
    completing->fetch = std::move(fetch);
    completing->base = std::move(base);
    return begin_fetch(completing);
  }
  if (in_place) {
    base.reset();
    WSYNC_TRY(take_base_arena(*completing));
    change(completing);
    return {};
  }
  completing->base = std::move(base);
  copy_beside(completing);
  return {};
}

void Store::copy_beside(const std::shared_ptr<Completing>& completing) {
  // As in begin_own(): everything released earlier is free then.
  memory_->post([this, post = post_, alive = alive_, completing] {
    post([this, alive, completing] {
      if (*alive) find_other_arena(completing, false);
    });
  });
}

// Takes the arena of the base if nobody but this store has a pointer to the version or to the
// arena, and no engine has a read lease.
Result<> Store::take_base_arena(Completing& completing) {
  const Version name = completing.changes.base;
  std::shared_ptr<const HeldVersion>& base = held_.at(name);
  if (auto recheck = rechecks_.extract(name)) recheck.mapped().request_stop();
  const auto own = std::ranges::find_if(
      own_, [&](const auto& each) { return each->arena.data().data() == base->data().data(); });
  const auto in_use = [&](std::string_view who) {
    return fail(ErrorCode::kBusy, fmt::format("{} uses the memory of {}", who, name.to_string()));
  };
  if (own == own_.end()) return in_use("another process");
  // The store has one pointer to the version, and two to the arena: one of them in the version.
  if ((base.use_count() != 1 || own->use_count() != 2) && !planted("base_changed_in_use"))
    return in_use("this process");
  (*own)->lease = std::monostate{};
  auto lease = (*own)->arena.try_write_lease(completing.version->identity());
  if (!lease) {
    if (auto again = (*own)->arena.try_read_lease())
      (*own)->lease.emplace<ReadLease>(std::move(*again));
    return in_use("an engine");
  }
  (*own)->lease.emplace<WriteLease>(std::move(*lease));
  completing.arena = *own;
  base = base->with_memory(NoMemory{});
  return {};
}

void Store::find_other_arena(const std::shared_ptr<Completing>& completing, bool was_made) {
  const std::uint64_t arena_bytes = completing->version->arena_bytes();
  const auto take = [&](const std::shared_ptr<OwnArena>& own) {
    if (!lock_free_arena(own, arena_bytes, completing->version->identity())) return false;
    completing->arena = own;
    change(completing);
    return true;
  };
  if (std::ranges::any_of(own_, take)) return;
  if (was_made) {  // a lease needs a descriptor; one more arena would not help
    completing->back = fail(ErrorCode::kInternal, "an arena that was just made is in use");
    return completed(*completing);
  }
  // What changes is given back when the version is complete. Otherwise it would not fit where as
  // many versions are held as check_budget() admits.
  const std::uint64_t more = arena_bytes - std::min(arena_bytes, completing->changes.bytes());
  if (!make_room(more)) {
    completing->back = fail(
        ErrorCode::kResourceExhausted,
        fmt::format("{} is still used, and memory beside it needs {} bytes, but host_memory "
                    "allows {}",
                    completing->changes.base.to_string(), bytes() + more, options_.memory_bytes));
    return completed(*completing);
  }
  completing_bytes_ = arena_bytes;
  make_arena(arena_bytes, stop_changing_.get_token(), [this, completing](Making& making) {
    completing_bytes_ = 0;
    if (!making.arena) {
      completing->back = fail(making.arena.error());
      return completed(*completing);
    }
    own_.push_back(
        std::make_shared<OwnArena>(OwnArena{.arena = std::move(*making.arena), .lease = {}}));
    find_other_arena(completing, true);
  });
}

void Store::change(const std::shared_ptr<Completing>& completing) {
  changer_->post([this, completing, post = post_, alive = alive_, threads = options_.threads,
                  stop = stop_changing_.get_token()] {
    const std::span<std::byte> data = std::get<WriteLease>(completing->arena->lease).data();
    if (completing->in_place && !completing->unfinished) {
      completing->back = patch::change_in_place(completing->changes, data, threads, stop);
    } else {
      const auto copied = patch::copy_with_changes(completing->changes, completing->source(), data,
                                                   completing->version->digests().leaves, threads,
                                                   stop, completing->rule());
      if (!copied)
        completing->back = fail(copied.error());
      else if (!completing->in_place)
        completing->back = patch::ChangedBuckets();
    }
    post([this, alive, completing] {
      if (*alive) completed(*completing);
    });
  });
}

void Store::completed(Completing& completing) {
  const Version version = completing.version->version();
  const bool in_place = completing.in_place;
  std::shared_ptr<OwnArena> arena = std::move(completing.arena);
  completing.base.reset();
  completing.unfinished.reset();
  if (completing.lent) destroy_later(std::move(*std::exchange(completing.lent, std::nullopt)));
  Result<> outcome = completing.back ? Result<>{} : Result<>(fail(completing.back.error()));
  if (outcome) {
    std::get<WriteLease>(std::move(arena->lease)).complete(completing.version->digests().root);
    if (auto lease = arena->arena.try_read_lease())
      arena->lease.emplace<ReadLease>(std::move(*lease));
    else
      outcome = fail(lease.error());  // a lease needs a descriptor
  }
  if (!outcome) {
    if (arena) arena->lease = std::monostate{};
    return completing.done(
        {.held = fail(outcome.error().with_context("make " + version.to_string() + " complete")),
         .in_place = in_place,
         .base_lost = in_place});
  }
  if (in_place) {
    patch::VersionChanges back = completing.changes;
    back.base = version;
    if (!planted("changes_back_are_those_there")) back.buckets = std::move(*completing.back);
    changes_.insert_or_assign(completing.changes.base, std::move(back));
  }
  changes_.erase(version);
  const auto held = completing.version->with_memory(std::move(arena));
  held_.insert_or_assign(version, held);
  completing.done({.held = held, .in_place = in_place});
}

// ---- a base in a mapped arena ----

Result<> Store::begin_fetch(const std::shared_ptr<Completing>& completing) {
  if (!completing->in_place) {
    post_([this, alive = alive_, completing] {
      if (*alive) fetch(completing);
    });
    return {};
  }
  const Version name = completing->changes.base;
  std::shared_ptr<const HeldVersion>& held = held_.at(name);
  if (auto recheck = rechecks_.extract(name)) recheck.mapped().request_stop();
  // The store has one pointer to the version, and `completing` another one.
  if (held.use_count() != 2 && !planted("base_lent_in_use"))
    return fail(ErrorCode::kBusy,
                fmt::format("this process uses the memory of {}", name.to_string()));
  // Nobody begins to read it any more.
  held = held->with_memory(NoMemory{});
  completing_bytes_ = completing->version->arena_bytes();
  changer_->post([this, completing, post = post_, alive = alive_, threads = options_.threads,
                  stop = stop_changing_.get_token()] {
    completing->back =
        patch::changes_back(completing->changes, completing->base->data(), threads, stop);
    post([this, alive, completing] {
      if (*alive) fetch(completing);
    });
  });
  return {};
}

void Store::fetch(const std::shared_ptr<Completing>& completing) {
  if (completing->in_place) {
    auto lent = completing->back ? LentArena::of(*completing->base)
                                 : Result<LentArena>(fail(completing->back.error()));
    if (!lent) {
      held_.insert_or_assign(completing->changes.base, completing->base);
      completing->in_place = false;
      completing->back = fail(lent.error());
      completing_bytes_ = 0;
      return completed(*completing);
    }
    completing->lent.emplace(std::move(*lent));
    completing->base.reset();  // the lease ends, so the trainer may write
    fail_point("arena_lent");
  }
  fetching_ = completing;
  completing->fetch();
}

void Store::arena_given(Result<ArenaView> view, bool is_last) {
  const auto completing = std::exchange(fetching_, nullptr);
  if (!completing) {
    if (view) destroy_later(std::move(*view));
    return;
  }
  if (view) return check_given(completing, std::move(*view));
  if (!std::exchange(completing->has_said, true))
    log_warning("the trainer does not give the arena of {}: {}",
                completing->version->version().to_string(), view.error().message());
  not_given(completing, is_last);
}

void Store::check_given(const std::shared_ptr<Completing>& completing, ArenaView view) {
  auto given = std::make_shared<ArenaView>(std::move(view));
  changer_->post([this, completing, given, post = post_, alive = alive_, threads = options_.threads,
                  stop = stop_changing_.get_token()] {
    const HeldVersion& version = *completing->version;
    const auto sums = [&]() -> Result<std::vector<WordSum>> {
      if (given->data().size() != version.arena_bytes())
        return fail(ErrorCode::kRefused, fmt::format("the arena has {} bytes of data, expected {}",
                                                     given->data().size(), version.arena_bytes()));
      if (!given->is_protected())
        return sum_leaves(*version.leaves(), given->data(), threads, stop);
      const auto known = given->leaf_sums();
      return std::vector<WordSum>(known.begin(), known.end());
    };
    auto verdict = std::make_shared<Result<>>(
        planted("given_arena_not_compared") ? Result<>{} : version.compare(sums()));
    post([this, alive, completing, given, verdict] {
      if (!*alive) return;
      if (*verdict) return take_given(*completing, std::move(*given));
      log_error("the arena that the trainer gives is not used: {}", verdict->error().message());
      destroy_later(std::move(*given));
      completing->is_damaged = true;
      not_given(completing, false);
    });
  });
}

void Store::take_given(Completing& completing, ArenaView view) {
  const Version version = completing.version->version();
  const Version base = completing.changes.base;
  // If the trainer has taken another arena, the base still has its own.
  const bool in_place = completing.lent && (completing.lent->is_in(view) || !take_back(completing));
  if (in_place) {
    patch::VersionChanges back = completing.changes;
    back.base = version;
    back.buckets = std::move(*completing.back);
    changes_.insert_or_assign(base, std::move(back));
  }
  changes_.erase(version);
  completing_bytes_ = 0;
  completing.base.reset();
  if (completing.lent) destroy_later(std::move(*std::exchange(completing.lent, std::nullopt)));
  const auto held = completing.version->with_memory(std::move(view), memory_);
  held_.insert_or_assign(version, held);
  completing.done({.held = held, .in_place = in_place});
}

bool Store::take_back(Completing& completing) {
  std::shared_ptr<const HeldVersion>& base = held_.at(completing.changes.base);
  auto view = completing.lent->open(base->identity());
  if (view) base = base->with_memory(std::move(*view), memory_);
  return view.has_value();
}

// The changes are here, so the version is made without the trainer.
void Store::not_given(const std::shared_ptr<Completing>& completing, bool is_last) {
  if (!completing->lent) return copy_beside(completing);
  // It has been written, but its trainer could not say so.
  const auto check_written = [&] {
    auto view = completing->lent->open(completing->version->identity());
    if (!view || completing->is_damaged) return false;
    check_given(completing, std::move(*view));
    return true;
  };
  if (check_written()) return;
  if (take_back(*completing)) {
    completing->base = held_.at(completing->changes.base);
    completing->in_place = false;
    destroy_later(std::move(*std::exchange(completing->lent, std::nullopt)));
    completing_bytes_ = 0;
    return copy_beside(completing);
  }
  const Version version = completing->version->version();
  auto lease = completing->lent->lock();
  if (!lease && (!is_last || planted("suspended_writer_awaited"))) {  // it is being written
    fetching_ = completing;
    return completing->fetch();
  }
  if (!lease) {
    completing_bytes_ = 0;
    completing->back = fail(
        ErrorCode::kPeerLost,
        fmt::format("the trainer stands still while it changes the arena of {} to {}, and nobody "
                    "can read it meanwhile",
                    completing->changes.base.to_string(), version.to_string()));
    return completed(*completing);
  }
  if (check_written()) return;  // between the two looks
  log_warning("the arena of {}, which was to become that of {}, has neither: {} is copied",
              completing->changes.base.to_string(), version.to_string(), version.to_string());
  completing->unfinished.emplace(std::move(*lease));
  completing_bytes_ = 0;
  copy_beside(completing);
}

}  // namespace wsync::staging
