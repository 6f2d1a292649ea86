// VersionLoader: the versions of the sidecar that a rank holds, and their loads. It owns the
// prepared versions with their mapped arenas, the mapped device buffers, the load in progress, and
// the version from which an adopting engine serves. RankMachine decides which of its functions may
// be called when.
//
// Thread: confined to the thread that serves the link.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "inference_side/engine_link/device_weights.h"
#include "inference_side/engine_link/engine.h"
#include "inference_side/engine_link/engine_scrub.h"
#include "inference_side/engine_link/ipc_buffers.h"
#include "inference_side/engine_link/load_session.h"
#include "inference_side/engine_link/patch_load.h"
#include "inference_side/engine_link/prepared_version.h"
#include "inference_side/engine_link/rank_machine.h"
#include "inference_side/engine_link/read_back.h"
#include "inference_side/engine_link/scrubber.h"
#include "shared/base/clock.h"
#include "shared/base/thread_pool.h"
#include "shared/base/unique_fd.h"

namespace wsync::engine {

// This class has more than 25 methods: every step of a load, of its patch and of its buffers has
// its own, because RankMachine decides about each of them.
class VersionLoader {
 public:
  // Borrows the rank's weights if they are on a GPU. `description` and `engine` are also borrowed
  // and must outlive the loader. `on_scrubbed` is called on another thread when take_scrubbed() has
  // something to return. Errors as DeviceWeights::create().
  [[nodiscard]] static Result<std::unique_ptr<VersionLoader>> create(
      const EngineDescription& description, Engine& engine, std::function<void()> on_scrubbed);

  [[nodiscard]] IpcBuffers& buffers() noexcept { return buffers_; }
  // Maps and plans the version, in place of an earlier one with the same name. `fds`: descriptors
  // of the frame. Returns kRefused for a wrong number of them; otherwise errors as
  // Preparer::prepare().
  [[nodiscard]] Result<> prepare(const control::Prepare& message, std::span<const UniqueFd> fds);
  // Gives up a prepared version. A version that is loaded or adopted stays. The mapping of its
  // arena is kept for later versions.
  void forget(const Version& version) {
    forget_ahead(version);
    // Not in a pause, because it takes long. Then it is kept until the rank serves again, or loads.
    if (!loading_ && serving_) written_patch_.reset();
    prepared_.erase(version);
  }
  // Unmaps the arenas in which no prepared, loaded or adopted version is. The others are unmapped
  // when their last version is given up.
  void forget_arenas() { preparer_.forget_arenas(); }

  // Maps and checks the patch of a load, before anything changes; the load that starts next is one
  // by this patch. `fds`: descriptors of the frame.
  // kRefused if the rank takes no patches or the version is not prepared, or for a wrong number of
  // descriptors; otherwise errors as PatchLoad::open().
  [[nodiscard]] Result<> map_patch(const control::Load& message, std::span<const UniqueFd> fds);
  // Forgets it, if no load has started with it.
  void drop_patch() noexcept { patch_.reset(); }
  // Maps and checks the patch of a load that may come, for a rank that holds the version that the
  // patch begins at. In host memory it also sums what the patch replaces as a whole. map_patch()
  // takes what was read here, if it is given the same memory. It is forgotten when a load starts,
  // and when the engine begins to serve. Errors as map_patch().
  [[nodiscard]] Result<> read_ahead(const control::PatchAhead& message,
                                    std::span<const UniqueFd> fds);

  // Weights on a GPU: checks or allocates the memory of a load of this version, before anything
  // changes (DeviceWeights::claim). Does nothing if the version is not prepared, or while awaited()
  // has one: its load then begins later, and may fail for want of memory.
  [[nodiscard]] Result<> claim(const Version& version);
  // What was claimed is given back if no load has begun in it.
  void give_up_claim() noexcept {
    if (weights_) weights_->give_up_claim();
  }
  // Starts to load a version, in place of any load in progress. Returns the outcome if the load has
  // already ended: if an arena is mapped and the engine does not answer later, after an error of
  // the engine, or with kRefused if the version is not prepared any more. Must not be called while
  // awaited() has a version.
  [[nodiscard]] std::optional<LoadOutcome> start_load(const Version& version, TimePoint deadline,
                                                      std::uint32_t copy_threads);
  struct BucketOutcome {
    Result<> result;
    // end_load(result) is due: it was the last bucket, or the copy failed, and the engine has
    // nothing to answer.
    bool ends_load = false;
  };
  // Copies one bucket of the load in progress. Returns kInvalidInput if there is no such buffer;
  // this error does not end the load.
  [[nodiscard]] BucketOutcome take_bucket(std::uint64_t bucket, std::uint32_t slot);
  // Ends the load in progress. Proves that nothing is missing unless `result` is an error, and
  // unmaps the buffers that came with the load.
  [[nodiscard]] LoadOutcome end_load(Result<> result);
  // The version whose bytes the engine reads until it has answered (Answer::kLater).
  [[nodiscard]] std::optional<Version> awaited() const;
  // Whether the engine has been given every layer of it.
  [[nodiscard]] bool awaited_is_complete() const { return session_->all_layers(); }
  // The load that awaited() names gets no further bucket: if the engine waits for more layers, it
  // is told so, and answers. Does nothing if there is none.
  void give_up_awaited();
  // The sidecar cancels the load in progress, or the one that waits for awaited(). Unmaps its
  // buffers, and returns its outcome. What the engine reads stays until drop_awaited().
  [[nodiscard]] LoadOutcome cancel();
  // The engine has answered a load whose outcome nobody waits for any more.
  void drop_awaited();
  // The loaded version has been committed.
  void activate();
  // The sidecar is lost. `keep_loaded`: the rank has loaded a version that is not committed yet.
  void release(bool keep_loaded);

  // The engine has given its memory away: nothing is mapped or leased any more, nothing refers to
  // its memory on a GPU, and it holds no version. Must not be called while awaited() has one.
  void forget_all();
  // The memory is there again. Errors as create().
  [[nodiscard]] Result<> check_memory();

  // Begins to read all weights again, or ends that, as the message says. Whatever becomes of it is
  // told by take_scrubbed(). The rank has to be serving for anything to be read (set_serving()).
  void scrub(const control::Scrub& message);
  void set_serving(bool serving) {
    begins_to_serve_ |= serving && !serving_;
    serving_ = serving;
    scrubber_.set_serving(serving);
    engine_scrub_.set_serving(serving);
  }
  // Unmaps the patches that are not needed any more. It takes long, so call it when what waits for
  // an answer has it.
  void unmap_patches() {
    if (std::exchange(begins_to_serve_, false)) {
      ahead_.reset();
      written_patch_.reset();
    }
    if (!description_.leader && !loading_) written_patch_.reset();
  }
  [[nodiscard]] std::optional<control::Scrubbed> take_scrubbed() {
    auto report = scrubber_.take_report();
    return report ? report : engine_scrub_.take_report();
  }
  // Nothing is read again any more when it returns.
  void stop_scrub() {
    scrubber_.drop();
    engine_scrub_.drop();
  }
  // Of a scrub in which the engine is asked for its bytes: asks for some of them, and when the next
  // ones are due. As EngineScrub::read() and due().
  void read_scrub(const std::function<bool()>& has_event) { engine_scrub_.read(has_event); }
  [[nodiscard]] std::optional<TimePoint> scrub_due() const { return engine_scrub_.due(); }

  // The layouts of the versions that are prepared, loaded or active.
  [[nodiscard]] std::map<Version, std::shared_ptr<const EngineLayout>> layouts() const;
  // The weights that `wsync verify` reads.
  [[nodiscard]] HeldWeights held() const;
  // Bytes of weights that all completed loads have copied.
  [[nodiscard]] std::uint64_t copied_bytes() const noexcept { return copied_bytes_; }

 private:
  VersionLoader(const EngineDescription& description, Engine& engine,
                std::unique_ptr<DeviceWeights> weights, std::function<void()> on_scrubbed)
      : description_(description),
        engine_(engine),
        weights_(std::move(weights)),
        preparer_(description),
        buffers_(weights_.get(), description.device),
        engine_scrub_(engine),
        scrubber_(std::move(on_scrubbed)) {}
  [[nodiscard]] Result<> begin_scrub(const control::Scrub& message);
  // For a pass of the memory that the library can read. kRefused if nothing has been adopted.
  [[nodiscard]] Result<std::span<const std::byte>> readable_part(std::size_t tensor) const;
  // Ends it, if there is one; its report says why.
  void end_scrub(const std::string& why) {
    scrubber_.end(why);
    engine_scrub_.end(why);
  }
  [[nodiscard]] ThreadPool* copiers(std::uint32_t threads);
  // Whether read_ahead() has read this patch, in the memory of this descriptor.
  [[nodiscard]] bool is_read_ahead(const Version& version, const Version& base,
                                   std::span<const UniqueFd> fds) const;
  void forget_ahead(const Version& version) {
    if (ahead_ && (ahead_->version == version || ahead_->base == version)) ahead_.reset();
  }
  [[nodiscard]] Result<std::unique_ptr<PatchLoad>> open_patch(const Version& version,
                                                              std::uint64_t bytes,
                                                              std::span<const UniqueFd> fds,
                                                              ThreadPool* helpers);
  // Gives the lease of the loaded version back, unless the engine serves from it.
  void give_back_lease();
  // The same, and forgets it. What an engine on a GPU has borrowed stays until the next load
  // begins.
  void drop_loading();

  const EngineDescription& description_;
  Engine& engine_;
  const std::unique_ptr<DeviceWeights> weights_;  // null: in host memory
  Preparer preparer_;
  IpcBuffers buffers_;
  std::map<Version, std::shared_ptr<PreparedVersion>> prepared_;
  // Of session_, or of the load that has ended. Its arena's lease is held.
  std::shared_ptr<PreparedVersion> loading_;
  // TakeMode::kAdopt: what the engine serves from. Its arena's lease is held.
  std::shared_ptr<PreparedVersion> adopted_;
  // The version that was committed last, and its layout; null before the first one.
  Version active_;
  std::shared_ptr<const EngineLayout> active_layout_;
  // A version whose bytes are in place. Other than active_layout_, it is known for every TakeMode.
  struct Complete {
    Version version;
    std::shared_ptr<const EngineLayout> layout;  // null: none
  };
  Complete loaded_;                       // not committed yet
  Complete committed_;                    // and not being overwritten
  std::unique_ptr<LoadSession> session_;  // the load in progress
  Result<> late_failure_;                 // of session_, which ends when the engine has answered
  std::unique_ptr<ThreadPool> copiers_;   // kept for the next load
  std::unique_ptr<PatchLoad> patch_;      // of the load that starts next
  std::unique_ptr<PatchLoad> written_patch_;  // of the load that was started last
  // What read_ahead() has read. No load has started since.
  struct AheadPatch {
    Version version;
    Version base;
    std::unique_ptr<PatchLoad> patch;
  };
  std::optional<AheadPatch> ahead_;
  bool serving_ = false;
  bool begins_to_serve_ = false;  // since unmap_patches()
  std::uint64_t copied_bytes_ = 0;
  EngineScrub engine_scrub_;  // of what only the engine can read
  Scrubber scrubber_;         // of the rest; destroyed first: it reads what the others hold
};

}  // namespace wsync::engine
