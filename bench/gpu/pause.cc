#include "bench/gpu/pause.h"

#include <cerrno>
#include <sys/stat.h>

#include "bench/gpu/changed_checkpoint.h"
#include "shared/base/format.h"
#include "shared/weights/checkpoint_dir.h"

namespace wsync::bench {
namespace {

void sum_up(PauseCase& done) {
  std::vector<double> paused;
  std::vector<double> load;
  for (const Pushed& pushed : done.rounds) {
    paused.push_back(static_cast<double>(pushed.paused_ns));
    load.push_back(static_cast<double>(pushed.load_ns));
  }
  done.paused_ns = spread_of(paused);
  done.load_ns = spread_of(load);
}

}  // namespace

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
  result.written_bytes = result.bytes;
  sum_up(result);
  return result;
}

Result<std::vector<PauseCase>> run_patched_pauses(const PauseCaseOptions& options,
                                                  const OnGpuProgress& on_progress) {
  const std::string label =
      fmt::format("pause by a patch of an engine on GPU {}", options.gpus.front());
  on_progress(label, 0, options.updates);
  const std::string directory = options.directory + "/patched";
  if (::mkdir(directory.c_str(), 0700) != 0) return fail_errno(directory, errno);
  const std::string& base = options.checkpoints.front();
  const std::string& other = options.checkpoints.back();
  const auto checkpoint = WSYNC_TRY(CheckpointDirectory::open(base));
  const std::uint64_t bytes = checkpoint.manifest().total_bytes();
  const PauseCase all{.gpus = {options.gpus.front()}, .bytes = bytes};
  std::vector<PauseCase> cases{all};
  std::vector<std::string> changed;
  for (const double share : kChangedShares) {
    changed.push_back(fmt::format("{}/changed{}", options.directory, changed.size()));
    WSYNC_TRY(write_changed_checkpoint(base, changed.back(), share));
    cases.push_back(all);
    cases.back().changed = share;
  }
  const auto children = WSYNC_TRY(bench_children(directory));
  auto fleet = MeasuredFleet::start({.executable = options.executable,
                                     .directory = directory,
                                     .name = "patched",
                                     .checkpoint = base,
                                     .gpus = all.gpus,
                                     .sidecar_settings = {"patch.mode=auto"}},
                                    *children);
  if (!fleet) return fail(fleet.error().with_context(label));
  const auto push = [&](const std::string& path) -> Result<Pushed> {
    auto pushed = (*fleet)->push(path);
    if (!pushed) return fail(pushed.error().with_context(label));
    if (pushed->checked_bytes != bytes)
      return fail(ErrorCode::kDigestMismatch,
                  fmt::format("{}: {} bytes were loaded and checked, expected {}", label,
                              pushed->checked_bytes, bytes));
    return pushed;
  };
  // In the first round everything is used for the first time, so it is not counted.
  for (unsigned round = 0; round <= options.updates; ++round) {
    on_progress(label, round == 0 ? 0 : round - 1, options.updates);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      // From the other checkpoint all bytes differ, and from this one the share.
      if (i != 1) (void)WSYNC_TRY(push(i == 0 ? other : base));
      const auto pushed = WSYNC_TRY(push(i == 0 ? base : changed[i - 1]));
      const auto load = WSYNC_TRY((*fleet)->last_load());
      cases[i].by_patch = load.by_patch;
      cases[i].written_bytes = load.written_bytes;
      if (i == 0 && load.by_patch)
        return fail(ErrorCode::kInternal, label + ": a patch was used although all bytes differ");
      if (round > 0) cases[i].rounds.push_back(pushed);
    }
  }
  WSYNC_TRY((*fleet)->verify());
  WSYNC_TRY((*fleet)->check_steps());
  for (PauseCase& done : cases) sum_up(done);
  return cases;
}

}  // namespace wsync::bench
