#include "bench/gpu/pause.h"

#include <cerrno>
#include <sys/stat.h>

#include "shared/base/format.h"
#include "shared/weights/checkpoint_dir.h"

namespace wsync::bench {

Result<PauseCase> run_pause_case(const PauseCaseOptions& options,
                                 const OnGpuProgress& on_progress) {
  const std::string label =
      fmt::format("pause of {} on GPUs {}", counted(options.gpus.size(), "engine"),
                  fmt::join(options.gpus, ", "));
  on_progress(label, 0, options.updates);
  const auto checkpoint = WSYNC_TRY(CheckpointDirectory::open(options.checkpoints.front()));
  PauseCase result;
  result.gpus = options.gpus;
  result.bytes = checkpoint.manifest().total_bytes();
  // Each fleet needs its own directory, so that two fleets of one run do not share sockets and
  // state.
  const std::string directory = fmt::format("{}/pause{}", options.directory, options.gpus.size());
  if (::mkdir(directory.c_str(), 0700) != 0) return fail_errno(directory, errno);
  const auto children = WSYNC_TRY(bench_children(directory));
  auto fleet = MeasuredFleet::start({.executable = options.executable,
                                     .directory = directory,
                                     .checkpoint = options.checkpoints.front(),
                                     .gpus = options.gpus},
                                    *children);
  if (!fleet) return fail(fleet.error().with_context(label));
  const unsigned warm = static_cast<unsigned>(options.checkpoints.size());
  for (unsigned i = 0; i < warm + options.updates; ++i) {
    on_progress(label, i < warm ? 0 : i - warm, options.updates);
    const auto pushed = (*fleet)->push(options.checkpoints[i % options.checkpoints.size()]);
    if (!pushed) return fail(pushed.error().with_context(label));
    if (pushed->checked_bytes != result.bytes * options.gpus.size())
      return fail(ErrorCode::kDigestMismatch,
                  fmt::format("{}: {} bytes were loaded and checked, expected {}", label,
                              pushed->checked_bytes, result.bytes * options.gpus.size()));
    if (i >= warm) result.rounds.push_back(*pushed);
  }
  WSYNC_TRY((*fleet)->verify());
  WSYNC_TRY((*fleet)->check_steps());
  std::vector<double> paused;
  std::vector<double> load;
  for (const Pushed& pushed : result.rounds) {
    paused.push_back(static_cast<double>(pushed.paused_ns));
    load.push_back(static_cast<double>(pushed.load_ns));
  }
  result.paused_ns = spread_of(paused);
  result.load_ns = spread_of(load);
  return result;
}

}  // namespace wsync::bench
