// DirectoryPublisher: writes decided versions as directories on a shared file system
// (shared/weights/weight_directory.h), beside publishing and never in its way: if the disc is
// slower than the trainer, the newest decided version is written next, and those between are left
// out. A version that is being written keeps its snapshot, so that the trainer needs one arena
// more.
//
// Thread: the loop's; directories are written on a worker thread. The loop must outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "shared/config/trainer_config.h"
#include "shared/loop/loop.h"
#include "shared/loop/worker.h"
#include "shared/weights/weight_directory.h"
#include "trainer_side/coordinator/round_metrics.h"
#include "trainer_side/publish/snapshot.h"

namespace wsync::publish {

class DirectoryPublisher {
 public:
  // Opens the folder; errors as WeightDirectoryWriter::open(). `on_failure` is called on the loop
  // with the sentence of a write that failed, and logs it. Publishing goes on, and the next version
  // is written.
  [[nodiscard]] static Result<std::unique_ptr<DirectoryPublisher>> create(
      Loop& loop, const config::DirectoryConfig& config,
      std::function<void(const std::string& sentence)> on_failure);
  DirectoryPublisher(const DirectoryPublisher&) = delete;
  DirectoryPublisher& operator=(const DirectoryPublisher&) = delete;
  // Ends the write that runs and writes the newest decided version, but stops both after a minute;
  // a read or a write that hangs in the file system is waited for.
  ~DirectoryPublisher();

  // The version of this snapshot has been decided.
  void write(std::shared_ptr<const Snapshot> snapshot);
  // The fleet goes back to this version: `latest` names its directory again. If that was removed or
  // never written, the version is written from its snapshot; without one (nullptr) this fails as a
  // write does.
  void go_back(const Version& version, std::shared_ptr<const Snapshot> snapshot);
  [[nodiscard]] const coordinator::DirectoryFacts& facts() const noexcept { return facts_; }

 private:
  struct Order {
    Version version;
    std::shared_ptr<const Snapshot> snapshot;  // null: only its directory will do
    bool goes_back = false;
  };
  struct Shared;  // with the worker's tasks
  DirectoryPublisher(Loop& loop, std::function<void(const std::string&)> on_failure,
                     std::shared_ptr<Shared> shared);
  void add(Order order);
  void begin();
  void end(const Result<std::string>& name, const Version& version);

  std::function<void(const std::string&)> on_failure_;
  std::shared_ptr<Shared> shared_;
  coordinator::DirectoryFacts facts_;
  std::optional<Order> next_;  // the newest that has not begun
  bool running_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for what the worker posts
  std::unique_ptr<Worker> worker_;
};

}  // namespace wsync::publish
