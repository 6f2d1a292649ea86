#include "inference_side/engine_link/version_loader.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/planted.h"

namespace wsync::engine {

using control::TakeMode;

Result<std::unique_ptr<VersionLoader>> VersionLoader::create(const EngineDescription& description,
                                                             Engine& engine,
                                                             std::function<void()> on_scrubbed) {
  std::unique_ptr<DeviceWeights> weights;
  if (description.gpu != nullptr)
    weights = WSYNC_TRY(DeviceWeights::create(*description.gpu, description));
  return std::unique_ptr<VersionLoader>(
      new VersionLoader(description, engine, std::move(weights), std::move(on_scrubbed)));
}

Result<> VersionLoader::prepare(const control::Prepare& message, std::span<const UniqueFd> fds) {
  const std::size_t needed = buffers_.needs_arenas() ? 1 : 0;
  if (fds.size() != needed)
    return fail(ErrorCode::kRefused,
                fmt::format("the version carried {} descriptors, expected {}", fds.size(), needed));
  forget_ahead(message.version);
  prepared_[message.version] =
      WSYNC_TRY(preparer_.prepare(message, needed == 1 ? fds.front().get() : -1));
  return {};
}

Result<std::unique_ptr<PatchLoad>> VersionLoader::open_patch(const Version& version,
                                                             std::uint64_t bytes,
                                                             std::span<const UniqueFd> fds,
                                                             ThreadPool* helpers) {
  const auto found = prepared_.find(version);
  if (found == prepared_.end() || !takes_patches(description_))
    return fail(ErrorCode::kRefused, "this rank takes no patches");
  if (description_.takes_changed_layers && !found->second->arena)
    return fail(ErrorCode::kRefused,
                "this rank takes changed layers only out of a version that it maps");
  if (fds.size() != 1)
    return fail(ErrorCode::kRefused,
                fmt::format("the patch carried {} descriptors, expected 1", fds.size()));
  auto opened = PatchLoad::open(fds.front().get(), bytes, *found->second, helpers);
  if (!opened) return fail(opened.error().with_context("patch"));
  return opened;
}

bool VersionLoader::is_read_ahead(const Version& version, const Version& base,
                                  std::span<const UniqueFd> fds) const {
  return ahead_ && ahead_->version == version && ahead_->base == base && fds.size() == 1 &&
         ahead_->patch->is_of(fds.front().get());
}

Result<> VersionLoader::map_patch(const control::Load& message, std::span<const UniqueFd> fds) {
  patch_.reset();
  const bool is_read = is_read_ahead(message.version, message.patch_base, fds);
  auto patch = is_read ? std::move(ahead_->patch)
                       : WSYNC_TRY(open_patch(message.version, message.patch_bytes, fds,
                                              copiers(message.copy_threads)));
  ahead_.reset();
  if (weights_) WSYNC_TRY(weights_->claim_patch());
  patch_ = std::move(patch);
  if (planted("patch_written_before_its_load"))
    (void)patch_->apply(description_, nullptr, now() + std::chrono::seconds(1));
  return {};
}

Result<> VersionLoader::read_ahead(const control::PatchAhead& message,
                                   std::span<const UniqueFd> fds) {
  if (is_read_ahead(message.version, message.patch_base, fds)) return {};
  ahead_.reset();
  // The threads of the load are kept for it.
  ThreadPool* const helpers = message.copy_threads > 1 ? copiers(message.copy_threads) : nullptr;
  auto patch = WSYNC_TRY(open_patch(message.version, message.patch_bytes, fds, helpers));
  const bool is_in_place = description_.take == TakeMode::kPieces && !weights_ &&
                           committed_.layout && committed_.version == message.patch_base;
  if (is_in_place) WSYNC_TRY(patch->sum_ahead(description_, helpers));
  ahead_ = {.version = message.version, .base = message.patch_base, .patch = std::move(patch)};
  return {};
}

Result<> VersionLoader::claim(const Version& version) {
  const auto found = prepared_.find(version);
  if (!weights_ || found == prepared_.end() || awaited()) return {};
  auto claimed = weights_->claim(*found->second->layout);
  // What a load has left that has failed is free when the next one begins. Nothing is lost if it
  // cannot begin then: the rank has no weights of a version anyway.
  if (!claimed && claimed.error().code() == ErrorCode::kResourceExhausted && !loading_ &&
      weights_->has_layers())
    return {};
  return claimed;
}

std::optional<LoadOutcome> VersionLoader::start_load(const Version& version, TimePoint deadline,
                                                     std::uint32_t copy_threads) {
  const auto found = prepared_.find(version);
  if (found == prepared_.end()) {
    buffers_.end_load();
    return LoadOutcome{
        .result = fail(ErrorCode::kRefused, fmt::format("version {} was released before its load "
                                                        "could begin",
                                                        version.to_string()))};
  }
  session_.reset();  // it borrows from loading_
  give_back_lease();
  written_patch_ = std::move(patch_);
  PatchLoad* const patch = written_patch_.get();
  if (!planted("patch_read_ahead_outlives_a_load")) ahead_.reset();
  scrubber_.hold();
  loaded_ = {};
  if (description_.take != TakeMode::kAdopt) committed_ = {};
  if (!patch || description_.takes_changed_layers)
    end_scrub(patch ? "layers were loaded meanwhile" : "all weights were loaded meanwhile");
  loading_ = found->second;
  session_ =
      std::make_unique<LoadSession>(description_, *loading_, engine_, deadline, weights_.get());
  if (loading_->arena)
    if (auto leased = loading_->arena->acquire(); !leased) return end_load(std::move(leased));
  if (auto begun = engine_.load_begin(version); !begun) return end_load(std::move(begun));
  // Until now the engine could read what it had borrowed of a load that has failed.
  if (weights_)
    if (auto begun = weights_->begin(*loading_->layout); !begun) return end_load(std::move(begun));
  if (patch && description_.takes_changed_layers) {
    auto loaded = session_->load_changed_layers(*patch);
    if (session_->awaits_engine()) {  // it still reads what it was given
      late_failure_ = loaded ? Result<>{} : std::move(loaded);
      return std::nullopt;
    }
    return end_load(std::move(loaded));
  }
  if (patch) {
    const std::vector<std::uint64_t> read = scrubber_.read_blocks();
    auto loaded = session_->load_patch(*patch, copiers(copy_threads), read);
    if (loaded && !read.empty()) scrubber_.change(session_->read_before(), session_->read_after());
    return end_load(std::move(loaded));
  }
  if (loading_->arena) {
    ThreadPool* const helpers =
        description_.take == TakeMode::kPieces ? copiers(copy_threads) : nullptr;
    auto loaded = session_->load_arena(helpers);
    // After an error too: the engine may still read the layers that it was given.
    if (session_->awaits_engine() && !planted("late_load_not_awaited")) {
      late_failure_ = loaded ? Result<>{} : std::move(loaded);
      return std::nullopt;
    }
    return end_load(std::move(loaded));
  }
  if (buffers_.needs_arenas() || session_->all_buckets()) return end_load({});
  return std::nullopt;
}

// Additional threads that copy together with the link's own thread.
ThreadPool* VersionLoader::copiers(std::uint32_t threads) {
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  const unsigned helpers = std::clamp(threads, 1U, cores) - 1;
  if (helpers == 0)
    copiers_.reset();
  else if (!copiers_ || copiers_->size() != helpers)
    copiers_ = std::make_unique<ThreadPool>(helpers);
  return copiers_.get();
}

VersionLoader::BucketOutcome VersionLoader::take_bucket(std::uint64_t bucket, std::uint32_t slot) {
  BucketTaker* const taker = buffers_.taker();
  if (taker == nullptr || slot >= taker->slots())
    return {.result =
                fail(ErrorCode::kInvalidInput, fmt::format("IPC buffer {} does not exist", slot))};
  // It has failed, and ends when the engine has answered.
  if (!late_failure_) return {.result = late_failure_};
  auto taken = session_->take_bucket(bucket, *taker, slot);
  const bool is_over = !taken || session_->all_buckets();
  if (is_over && session_->awaits_engine() && !planted("late_load_not_awaited")) {
    late_failure_ = taken;
    if (!taken) session_->give_up();
    return {.result = std::move(taken)};
  }
  return {.result = std::move(taken), .ends_load = is_over};
}

std::optional<Version> VersionLoader::awaited() const {
  if (!session_ || !session_->awaits_engine()) return std::nullopt;
  return session_->prepared().version;
}

void VersionLoader::give_up_awaited() {
  if (session_) session_->give_up();
}

LoadOutcome VersionLoader::cancel() {
  auto cancelled = fail(ErrorCode::kCancelled, "the load was cancelled");
  if (!awaited()) return end_load(std::move(cancelled));
  buffers_.end_load();
  give_up_awaited();
  return {.result = std::move(cancelled)};
}

void VersionLoader::drop_awaited() {
  late_failure_ = Result<>{};
  session_.reset();
  drop_loading();
  if (weights_) weights_->end();
}

LoadOutcome VersionLoader::end_load(Result<> result) {
  if (const Result<> late = std::exchange(late_failure_, Result<>{}); !late) result = late;
  if (result) result = session_->finish();
  if (result)
    loaded_ = {.version = loading_->version, .layout = loading_->layout};
  else
    end_scrub("a load has failed");
  LoadOutcome outcome{.bytes = session_->bytes(),
                      .copy_ns = static_cast<std::uint64_t>(session_->copy_time().count()),
                      .sums = result ? session_->take_sums() : std::vector<SplitSum>(),
                      .before = result ? session_->take_sums_before() : std::vector<SplitSum>(),
                      .written_bytes = session_->copied_bytes(),
                      .result = std::move(result)};
  copied_bytes_ += session_->copied_bytes();
  const bool has_reported = session_->awaits_engine();
  session_.reset();
  // An engine that borrows or adopts still reads the arena after its load.
  if (!outcome.result || !control::maps_version(description_.take) ||
      planted("borrowed_lease_ends_early")) {
    drop_loading();
    if (weights_ && (has_reported || planted("borrowed_lease_ends_early"))) weights_->end();
  }
  // Unmap before the answer is sent. The sidecar frees the buffers of a load when it has every
  // answer, and their memory is then free.
  buffers_.end_load();
  return outcome;
}

void VersionLoader::activate() {
  if (loading_) {
    active_ = loading_->version;
    active_layout_ = loading_->layout;
  }
  if (loaded_.layout) {
    committed_ = std::exchange(loaded_, {});
    scrubber_.set_version(committed_.version);
  }
  // An adopting engine reads the mapped arena until another version is committed. The lease must
  // outlive Release and the sidecar; otherwise a trainer could overwrite the weights that the
  // engine serves.
  if (description_.take == TakeMode::kAdopt && loading_ != adopted_ &&
      !planted("adopted_lease_let_go")) {
    scrubber_.drop();  // it reads what the engine has served from
    // The engine has answered the commit, so it no longer reads the previous version.
    const auto previous = std::exchange(adopted_, loading_);
    if (previous && previous->arena) previous->arena->release();
  }
  if (description_.take == TakeMode::kBorrow && planted("borrowed_lease_kept")) return;
  drop_loading();
  if (weights_) weights_->end();
}

void VersionLoader::give_back_lease() {
  if (loading_ && loading_ != adopted_ && loading_->arena) loading_->arena->release();
}

void VersionLoader::drop_loading() {
  give_back_lease();
  loading_.reset();
  // An engine that borrows is not told of every failure, and its work on the GPU may still run.
  if (weights_ && (!control::maps_version(description_.take) ||
                   planted("borrowed_gpu_memory_ends_with_the_load")))
    weights_->end();
}

void VersionLoader::scrub(const control::Scrub& message) {
  if (message.pass == 0) return stop_scrub();
  if (const auto begun = begin_scrub(message); !begun)
    scrubber_.end(message.pass, begun.error().message());
}

// Where the rank's part of a tensor lies in memory that the library can read.
Result<std::span<const std::byte>> VersionLoader::readable_part(std::size_t tensor) const {
  const reload::LoadTensor& loaded = committed_.layout->plan.tensors()[tensor];
  if (loaded.shard.bytes() == 0) return std::span<const std::byte>();
  if (description_.take == TakeMode::kPieces)
    return std::span<const std::byte>(description_.tensors[tensor].destination);
  if (adopted_ && adopted_->arena && loaded.shard.contiguous())
    return adopted_->arena->data().subspan(loaded.arena_offset + loaded.shard.run_at(0).offset,
                                           loaded.shard.bytes());
  return fail(ErrorCode::kRefused, "no version has been adopted");
}

Result<> VersionLoader::begin_scrub(const control::Scrub& message) {
  engine_scrub_.drop();
  if (std::string why = why_not_scrubbed(description_, engine_); !why.empty())
    return fail(ErrorCode::kRefused, std::move(why));
  const Complete& held = committed_;
  if (!held.layout) return fail(ErrorCode::kRefused, "this rank has not loaded a version");
  if (loading_ && loading_ != adopted_)
    return fail(ErrorCode::kBusy, "another version is being loaded");
  std::vector<ScrubPass::Tensor> tensors;
  const bool asks_engine = is_held_by_engine(description_);
  for (std::size_t t = 0; t < held.layout->plan.tensors().size(); ++t) {
    const reload::LoadTensor& tensor = held.layout->plan.tensors()[t];
    tensors.push_back({.seed = tensor.seed, .shard = tensor.shard, .memory = {}});
    if (!asks_engine) tensors.back().memory = WSYNC_TRY(readable_part(t));
  }
  ScrubPass pass(message.pass, held.version, std::move(tensors), now());
  if (!asks_engine) return scrubber_.begin(std::move(pass), message.share_ppm);
  engine_scrub_.begin(std::move(pass), message.share_ppm);
  return {};
}

void VersionLoader::release(bool keep_loaded) {
  stop_scrub();  // nobody would compare the sums
  // After the loss nobody would release these leases, and a trainer must not wait for them. Nobody
  // would say either that an arena has been freed.
  ahead_.reset();
  written_patch_.reset();
  prepared_.clear();
  forget_arenas();
  // An engine that has not answered still reads its layers. Otherwise, an engine that borrows or
  // adopts has pointers to the loaded version, and may still receive a commit.
  if (!awaited() || planted("late_lease_let_go")) {
    session_.reset();
    if (!keep_loaded || !control::maps_version(description_.take)) drop_loading();
  }
  buffers_.release();
  give_up_awaited();
}

void VersionLoader::forget_all() {
  release(false);
  drop_loading();
  adopted_.reset();
  active_ = {};
  active_layout_.reset();
  loaded_ = {};
  committed_ = {};
  if (weights_) weights_->release();
}

Result<> VersionLoader::check_memory() { return weights_ ? weights_->check() : Result<>{}; }

std::map<Version, std::shared_ptr<const EngineLayout>> VersionLoader::layouts() const {
  std::map<Version, std::shared_ptr<const EngineLayout>> layouts;
  if (active_layout_) layouts[active_] = active_layout_;
  for (const auto& [version, prepared] : prepared_) layouts[version] = prepared->layout;
  if (loading_) layouts[loading_->version] = loading_->layout;
  return layouts;
}

HeldWeights VersionLoader::held() const {
  return {.description = &description_,
          .engine = &engine_,
          .on_gpu = weights_.get(),
          .adopted = adopted_.get(),
          .layout = active_layout_.get()};
}

}  // namespace wsync::engine
