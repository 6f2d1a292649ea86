#include "inference_side/sidecar/version_preparation.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>
#include <span>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/log.h"

namespace wsync::agent {

VersionPreparation::VersionPreparation(Loop& loop, const reload::DeviceGroup* devices,
                                       PatchOptions patches, Callbacks callbacks)
    : loop_(loop),
      devices_(devices),
      callbacks_(std::move(callbacks)),
      cache_(std::make_shared<LoadCache>()),
      patches_(std::make_unique<PatchShelf>(loop, std::move(patches))),
      worker_(loop, WorkerOptions{.name = "load-plans", .max_queued = limits::kReplicaCount}),
      device_staging_(devices == nullptr ? nullptr
                                         : std::make_unique<DeviceStaging>(loop, *devices)) {}

VersionPreparation::~VersionPreparation() {
  *alive_ = false;
  patches_.reset();
  cache_.reset();  // stops what its computations read
  worker_.stop();
}

void VersionPreparation::add(const std::shared_ptr<const staging::HeldVersion>& version,
                             const Ranks& ranks, std::function<void()> on_ready,
                             const std::shared_ptr<const staging::ReceivedChanges>& changes,
                             std::chrono::milliseconds wait) {
  const Version name = version->version();
  versions_[name] = version;
  Waiting waiting{.wait = wait};
  std::ranges::copy_if(ranks, std::back_inserter(waiting.ranks),
                       [](const auto& rank) { return rank->silence.empty(); });
  waiting.devices_ready = device_staging_ == nullptr;
  waiting.on_ready = std::move(on_ready);
  waiting.deadline = std::make_unique<Timer>(loop_, [this, name] { pass_over_silent(name); });
  waiting.deadline->start(wait);
  waiting_[name] = std::move(waiting);
  if (device_staging_) device_staging_->add(version, [this, name] { devices_staged(name); });
  const Ranks asked = waiting_.at(name).ranks;
  for (const auto& rank : asked) request_plan(rank, version);
  make_patches(version, ranks, changes);
  answered(nullptr, &name);
}

void VersionPreparation::add_changes(const std::shared_ptr<const staging::HeldVersion>& version,
                                     const Ranks& ranks, std::function<void()> on_ready,
                                     const std::shared_ptr<const staging::ReceivedChanges>& changes,
                                     std::chrono::milliseconds wait) {
  const Version name = version->version();
  Waiting waiting{.wait = wait};
  waiting.devices_ready = true;
  waiting.on_ready = std::move(on_ready);
  waiting.deadline = std::make_unique<Timer>(loop_, [this, name] { pass_over_silent(name); });
  waiting.deadline->start(waiting.wait);
  waiting_[name] = std::move(waiting);
  if (changes) make_patches(version, ranks, changes);
  answered(nullptr, &name);
}

// From what is served by ranks that take patches, the most common one first.
void VersionPreparation::make_patches(
    const std::shared_ptr<const staging::HeldVersion>& version, const Ranks& ranks,
    const std::shared_ptr<const staging::ReceivedChanges>& changes) {
  const Version name = version->version();
  std::map<Version, std::size_t> bases;
  for (const auto& rank : ranks)
    if (rank->takes_patches && rank->active != name && versions_.contains(rank->active))
      ++bases[rank->active];
  std::vector<std::pair<std::size_t, Version>> order;
  for (const auto& [base, count] : bases) order.emplace_back(count, base);
  std::ranges::sort(order, std::greater<>());
  for (const auto& [count, base] :
       std::span(order).first(std::min(order.size(), PatchShelf::kBasesMax))) {
    auto from = versions_.at(base);
    if (!version->is_complete()) {
      // The patch must not keep the memory of its base from being changed.
      if (!staging::HeldPatch::is_known(*from, *version, changes.get())) continue;
      from = from->with_memory(staging::NoMemory{});
    }
    if (patches_->make(
            std::move(from), version,
            [this, alive = alive_, name] {
              if (!*alive) return;
              if (const auto found = waiting_.find(name);
                  found != waiting_.end() && found->second.patches != 0)
                --found->second.patches;
              answered(nullptr, &name);
            },
            changes))
      ++waiting_.at(name).patches;
  }
}

void VersionPreparation::active_changed(const Ranks& ranks, bool is_quiet) {
  std::set<Version> bases;
  for (const auto& rank : ranks)
    if (rank->takes_patches) bases.insert(rank->active);
  for (const auto& patch : patches_->all()) {
    const Version from = patch->base().version();
    const Version to = patch->target().version();
    const auto base = find(from);  // null: its memory is that of a newer version
    const bool is_due = is_quiet || !bases.contains(from);
    if (base != nullptr && from < to && bases.contains(to) && is_due)
      patches_->make_back(patch, base);
  }
  patches_->keep_only(bases);
}

bool VersionPreparation::remove(const Version& version, const Ranks& ranks, bool is_lent) {
  waiting_.erase(version);
  if (!is_lent) patches_->forget(version);
  if (versions_.erase(version) == 0) return false;
  cache_->forget(version);
  if (device_staging_) device_staging_->remove(version);
  for (const auto& rank : ranks) {
    rank->declined.erase(version);
    if (rank->prepared.erase(version) != 0) rank->send(0, control::Release{version});
  }
  return true;
}

void VersionPreparation::attached(const std::shared_ptr<EngineRank>& rank) {
  for (const auto& [name, version] : versions_)
    if (!rank->prepared.contains(name)) request_plan(rank, version);
}

void VersionPreparation::renew(const std::shared_ptr<EngineRank>& rank, const Version& version) {
  rank->prepared.erase(version);
  if (const auto held = find(version)) request_plan(rank, held);
}

// ---- ranks ----

void VersionPreparation::request_plan(const std::shared_ptr<EngineRank>& rank,
                                      const std::shared_ptr<const staging::HeldVersion>& version) {
  const std::uint64_t bucket_bytes =
      devices_ != nullptr ? devices_->buffer_bytes() : version->plan()->bucket_bytes();
  cache_->request(
      worker_, version, bucket_bytes,
      {.list = rank->any_layout ? nullptr : rank->tensors,
       .key = rank->tensors_key,
       .maps_version = rank->maps_version},
      [this, alive = alive_, rank, version](Result<std::shared_ptr<const PreparedLoad>> load) {
        const Version name = version->version();
        if (!*alive || !versions_.contains(name)) return;
        if (!load && load.error().code() == ErrorCode::kDigestMismatch)
          loop_.post([this, alive, name, why = load.error()] {
            if (*alive) callbacks_.on_unusable(name, why);
          });
        if (!rank->attached || !rank->silence.empty()) return;
        if (load)
          if (const auto sent = send_prepare(*rank, *version, **load); !sent)
            load = fail(sent.error());
        const bool failed = !load;
        rank->prepared.insert_or_assign(name, std::move(load));
        if (failed) answered(rank, &name);
        callbacks_.on_rank_prepared(rank->replica);
      });
}

void VersionPreparation::verify(const std::shared_ptr<const staging::HeldVersion>& version,
                                std::function<void(Result<>)> done) {
  cache_->request(worker_, version, version->plan()->bucket_bytes(),
                  {.list = nullptr, .key = {}, .maps_version = true},
                  [this, alive = alive_, name = version->version(), done = std::move(done)](
                      const Result<std::shared_ptr<const PreparedLoad>>& load) {
                    if (!*alive) return;
                    if (!load && load.error().code() == ErrorCode::kDigestMismatch)
                      loop_.post([this, alive, name, why = load.error()] {
                        if (*alive) callbacks_.on_unusable(name, why);
                      });
                    done(load ? Result<>{} : Result<>(fail(load.error())));
                  });
}

Result<> VersionPreparation::send_prepare(EngineRank& rank, const staging::HeldVersion& version,
                                          const PreparedLoad& load) const {
  std::vector<UniqueFd> fds;
  // On unified devices the rank maps the version itself.
  if (devices_ == nullptr) fds.push_back(WSYNC_TRY(version.share()));
  control::Prepare message;
  message.version = version.version();
  message.layout_digest = version.identity().layout;
  // Send a layout only once, because it is large and equal for most versions.
  if (rank.layout_sent != message.layout_digest) {
    ByteWriter layout;
    version.manifest()->encode(layout);
    message.layout = std::move(layout).take();
    rank.layout_sent = message.layout_digest;
  }
  message.bucket_bytes = load.buckets->bucket_bytes();
  message.arena_bytes = version.arena_bytes();
  message.is_verified = version.is_verified();
  rank.send(0, message, std::move(fds));
  return {};
}

void VersionPreparation::handle(const std::shared_ptr<EngineRank>& rank,
                                const control::Prepared& prepared) {
  // Before the rank counts as prepared, so that the version is not announced as staged.
  if (prepared.is_refused)
    loop_.post(
        [this, alive = alive_, version = prepared.version,
         why = Error(ErrorCode::kRefused,
                     fmt::format("replica '{}' rank {} refuses {}: {}", rank->replica, rank->rank,
                                 prepared.version.to_string(), prepared.failure))] {
          if (*alive) callbacks_.on_unusable(version, why);
        });
  answered(rank, &prepared.version);
  if (prepared.failure.empty()) return;
  log_warning("engine {} rank {} cannot load {}: {}", rank->replica, rank->rank,
              prepared.version.to_string(), prepared.failure);
  mark_unloadable(*rank, prepared);
}

void VersionPreparation::declined(const std::shared_ptr<EngineRank>& rank,
                                  const control::Prepared& prepared) {
  answered(rank, &prepared.version);
  mark_unloadable(*rank, prepared);
}

void VersionPreparation::mark_unloadable(EngineRank& rank, const control::Prepared& prepared) {
  if (const auto found = rank.prepared.find(prepared.version); found != rank.prepared.end())
    found->second = fail(ErrorCode::kRefused, prepared.failure);
}

// Skip only ranks that were sent Prepare. A rank whose plan is still being computed is not silent.
void VersionPreparation::pass_over_silent(const Version& version) {
  const auto found = waiting_.find(version);
  if (found == waiting_.end()) return;
  Waiting& waiting = found->second;
  std::erase_if(waiting.ranks, [&](const auto& rank) { return rank->prepared.contains(version); });
  waiting.patches = 0;  // one that is still being made is used if it comes in time
  if (!waiting.ranks.empty()) waiting.deadline->start(waiting.wait);
  answered(nullptr, &version);
}

// Removes `rank` from the ranks that are awaited. `rank` null: only check whether none is awaited
// any longer. `version` null: all versions.
void VersionPreparation::answered(const std::shared_ptr<EngineRank>& rank, const Version* version) {
  std::vector<Version> finished;
  for (auto& [name, waiting] : waiting_) {
    if (version != nullptr && name != *version) continue;
    if (rank) std::erase(waiting.ranks, rank);
    if (waiting.ranks.empty() && waiting.devices_ready && waiting.patches == 0)
      finished.push_back(name);
  }
  for (const Version& name : finished) {
    auto entry = waiting_.extract(name);
    loop_.post([alive = alive_, ready = std::move(entry.mapped().on_ready)] {
      if (*alive) ready();
    });
  }
}

// ---- devices ----

void VersionPreparation::devices_staged(const Version& version) {
  if (const auto staged = device_staging_->find(version); !staged->usable)
    log_warning("version {} cannot be prepared on the devices: {}", version.to_string(),
                staged->usable.error().message());
  if (const auto found = waiting_.find(version); found != waiting_.end())
    found->second.devices_ready = true;
  answered(nullptr, &version);
  callbacks_.on_devices_ready();
}

std::optional<Result<>> VersionPreparation::devices_ready(const Version& version) const {
  if (!device_staging_) return Result<>{};
  const auto staged = device_staging_->find(version);
  return staged ? std::optional<Result<>>(staged->usable) : std::nullopt;
}

std::shared_ptr<const DeviceVersion> VersionPreparation::on_devices(const Version& version) const {
  return device_staging_ ? device_staging_->find(version) : nullptr;
}

// ---- versions ----

std::shared_ptr<const staging::HeldVersion> VersionPreparation::find(const Version& version) const {
  const auto found = versions_.find(version);
  return found == versions_.end() ? nullptr : found->second;
}

std::vector<Version> VersionPreparation::versions() const {
  std::vector<Version> names;
  for (const auto& [name, version] : versions_) names.push_back(name);
  return names;
}

const Manifest* VersionPreparation::newest_layout() const {
  return versions_.empty() ? nullptr : versions_.rbegin()->second->manifest().get();
}

}  // namespace wsync::agent
