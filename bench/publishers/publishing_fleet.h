// A sidecar and engines that serve what one publisher process publishes, and the measurement of a
// publish.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/peers/model_source.h"
#include "bench/sync/measured_fleet.h"
#include "shared/base/error.h"

namespace wsync::bench {

struct PublishingFleetOptions {
  MeasuredFleetOptions fleet;        // without a trainer; copied_bytes() needs its pages
  std::string executable;            // of the publisher: wsync, or an interpreter
  std::vector<std::string> command;  // its arguments; the path of its job is added
  std::vector<std::string> kinds;    // of tensors, for the job
};

// One publish. Times are measured by the publisher's process, from just before it began.
struct PublishSample {
  std::uint64_t snapshot_ns = 0;  // until publish returned: the weights may change
  std::uint64_t staged_ns = 0;    // until the wait for "staged" returned
  std::uint64_t whole_ns = 0;     // until the wait for "committed" returned
  std::uint64_t paused_ns = 0;    // longest of the engines, as the product reports it
  std::uint64_t load_ns = 0;      // part of the pause, mean of the engines, from the sidecar's page
  std::uint64_t snapshot_cpu_ns = 0;  // processor time of the publisher until publish returned
  std::uint64_t cpu_ns = 0;           // processor time of the publisher for the whole
  std::uint64_t copied_bytes = 0;     // by the library, into the snapshot
  std::uint64_t sent_bytes = 0;       // by the library, into sockets
  // Peak resident memory of the publisher during the publish, without the snapshots, and without
  // what it had before its first publish: its weights and its program. A copy that the library does
  // not count shows here, also if its memory is kept for the next publish.
  std::uint64_t growth_bytes = 0;
  std::uint64_t bytes = 0;  // of the model; set by the caller
  std::string digest;       // of the published content
};

// Thread: that of the ChildProcesses, which outlive it.
class PublishingFleet {
 public:
  // Starts all processes, and waits until the publisher is ready and the engines are attached.
  [[nodiscard]] static Result<std::unique_ptr<PublishingFleet>> start(
      PublishingFleetOptions options, const ModelSource& source, cli::ChildProcesses& children);
  PublishingFleet(const PublishingFleet&) = delete;
  PublishingFleet& operator=(const PublishingFleet&) = delete;
  ~PublishingFleet();  // the publisher ends first

  // kRefused, with the reason, unless every engine has committed it.
  [[nodiscard]] Result<PublishSample> publish(const std::string& kind, std::uint64_t stamp);
  // Changes a part of the publisher's weights, for a publish of the kind kPublishChanged
  // (c_publisher.h). Returns the bytes of the elements that it has changed.
  [[nodiscard]] Result<std::uint64_t> change(const std::string& how, double share,
                                             std::uint64_t seed);
  // Gives the publisher the weights of this file, which is one of ModelSource::models, for a
  // publish of the kind kPublishChanged. Returns the number of elements whose bits change.
  [[nodiscard]] Result<std::uint64_t> load(const std::string& model);
  // What the sidecar has counted since its start.
  struct PatchCounts {
    std::uint64_t loads = 0;            // by a patch, of all engines
    std::uint64_t bytes = 0;            // of the patches
    std::uint64_t travelled_bytes = 0;  // of versions that were received as copies
  };
  [[nodiscard]] Result<PatchCounts> patch_counts() const;
  // What publisher, sidecar and engines have in memory that can be shared, and what publisher and
  // sidecar have got of other memory since just before the first publish: versions and patches, but
  // neither the publisher's weights nor those of the engines. Errors as memfd_bytes_of().
  [[nodiscard]] Result<std::uint64_t> version_bytes() const;
  // Copies the publisher's weights once in this way, in its process, to memory like that of a
  // snapshot, and returns the time.
  [[nodiscard]] Result<std::uint64_t> snapshot_floor(const FloorWay& way);
  // As MeasuredFleet::floor().
  [[nodiscard]] Result<std::vector<FloorRun>> engines_floor(const std::vector<FloorWay>& ways) {
    return fleet_->floor(ways);
  }
  // The trace of the last update (`wsync trace get`).
  [[nodiscard]] Result<nlohmann::json> trace();
  // Reads back the engines' weights, and checks that no step has read torn ones.
  [[nodiscard]] Result<> verify();
  [[nodiscard]] unsigned versions_held() const noexcept { return fleet_->versions_held(); }

 private:
  PublishingFleet(PublishingFleetOptions options, cli::ChildProcesses& children)
      : options_(std::move(options)), children_(children) {}
  [[nodiscard]] Result<> start_publisher(const ModelSource& source);
  [[nodiscard]] Result<nlohmann::json> answer();
  [[nodiscard]] Result<double> load_seconds() const;

  const PublishingFleetOptions options_;
  cli::ChildProcesses& children_;
  cli::Child* publisher_ = nullptr;
  std::deque<std::string> lines_;  // that the publisher has printed
  // Resident memory before the first publish.
  std::uint64_t private_bytes_ = 0;  // of the publisher
  std::uint64_t sidecar_private_bytes_ = 0;
  std::unique_ptr<MeasuredFleet> fleet_;
};

}  // namespace wsync::bench
