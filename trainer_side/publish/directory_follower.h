// DirectoryFollower: a trainer without a training loop. It follows a folder of weight directories
// (shared/weights/weight_directory.h) that another trainer writes on a shared file system, and
// publishes what `latest` names: the coordinator of a fleet whose trainer cannot be reached.
//
// `latest` decides. Each time that it names other bytes than the fleet serves, these are published
// as a new version of this fleet, also if the directory is an older one: the writer has gone back.
// Who is behind publishes the newest alone. Directories that cannot be read, are not complete or
// vanish are tried again at the next look. One whose bytes are not those that its writer states is
// refused with one incident, until its files or `latest` change; the fleet keeps what it serves. A
// publish that fails for any other reason is tried again, after pauses of 1 s to 30 s.
//
// Which directory the fleet serves is stored in state_dir, so that a restart publishes nothing if
// nothing has changed and a sidecar still holds the bytes.
//
// Thread: the loop's; directories are read on a worker thread. The loop must outlive it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "shared/base/clock.h"
#include "shared/loop/timer.h"
#include "shared/loop/worker.h"
#include "shared/weights/weight_directory.h"
#include "trainer_side/publish/trainer_agent.h"

namespace wsync::publish {

class DirectoryFollower {
 public:
  // `config.follow_directory` must be set; it need not exist yet. Errors as TrainerAgent::create().
  // `on_stopped` as in TrainerAgentCallbacks.
  [[nodiscard]] static Result<std::unique_ptr<DirectoryFollower>> create(
      Loop& loop, const config::TrainerConfig& config,
      std::function<void(const Error& reason)> on_stopped);
  DirectoryFollower(const DirectoryFollower&) = delete;
  DirectoryFollower& operator=(const DirectoryFollower&) = delete;
  ~DirectoryFollower();

 private:
  // What `latest` named at a look.
  struct Found {
    std::string path;
    std::string files;                 // weight_files_identity()
    std::optional<WeightProof> proof;  // std::nullopt: of another program, not proven
    // Empty for a directory without a proof: its files tell whether it is another one.
    [[nodiscard]] std::string content() const { return proof ? proof->content.to_string() : ""; }
    [[nodiscard]] bool is_same(const Found& other) const {
      return (path == other.path && files == other.files) ||
             (proof && content() == other.content());
    }
  };
  DirectoryFollower(Loop& loop, const config::TrainerConfig& config);
  // `seen` again, without opening a file, if `latest` and the files are as they were then.
  [[nodiscard]] static Result<Found> look_at(const std::string& folder,
                                             const std::optional<Found>& seen);
  void restore(const Version& target);
  void store(const Version& version);
  void look();
  void handle(Result<Found> found);
  void publish(const Found& found);
  void end(const Found& found, const PublishResult& result);
  void report(const std::string& sentence);

  const config::TrainerConfig config_;
  const std::string record_path_;
  std::optional<Found> seen_;       // at the last look that could read it
  std::optional<Found> served_;     // what the fleet serves
  std::optional<Found> published_;  // the newest that was published and has not ended
  std::optional<Found> refused_;    // not to be tried again
  std::string reported_;            // the last sentence that was logged
  bool reads_ = false;              // a look or a snapshot
  TimePoint not_before_{};          // after a failure
  std::chrono::milliseconds pause_{0};
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  Timer timer_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<TrainerAgent> agent_;
};

}  // namespace wsync::publish
