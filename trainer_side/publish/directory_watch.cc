#include "trainer_side/publish/directory_watch.h"

#include <charconv>
#include <functional>
#include <map>

#include "shared/base/log.h"
#include "trainer_side/publish/checkpoint_source.h"

namespace wsync::publish {
namespace {

constexpr std::chrono::milliseconds kLookInterval{500};
constexpr std::string_view kPrefix = "step_";

struct Found {
  std::filesystem::path directory;
  std::uint64_t step = 0;
};

// The highest step above `last` whose directory is complete. A directory above it that is still
// being written is checked again at the next scan.
std::optional<Found> newest_complete(const std::filesystem::path& parent, std::uint64_t last) {
  std::map<std::uint64_t, std::filesystem::path, std::greater<>> steps;
  std::error_code error;
  for (std::filesystem::directory_iterator it(parent, error), end; !error && it != end;
       it.increment(error)) {
    const std::optional<std::uint64_t> step = step_of(it->path());
    if (step && *step > last) steps.emplace(*step, it->path());
  }
  for (const auto& [step, directory] : steps) {
    const auto source = open_checkpoint_source(directory.string());
    if (source) return Found{directory, step};
    log_debug("{} is not complete yet: {}", directory.string(), source.error().message());
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> step_of(const std::filesystem::path& directory) {
  const std::string name = directory.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::uint64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto [last, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (error != std::errc{} || last != end || step == 0) return std::nullopt;
  return step;
}

DirectoryWatch::DirectoryWatch(Loop& loop, const std::filesystem::path& checkpoint,
                               MayLook may_look, OnComplete on_complete)
    : parent_(std::filesystem::absolute(checkpoint).lexically_normal().parent_path()),
      may_look_(std::move(may_look)),
      on_complete_(std::move(on_complete)),
      last_step_(step_of(checkpoint).value_or(0)),
      worker_(std::make_unique<Worker>(loop, WorkerOptions{.name = "watch"})),
      timer_(loop, [this] { look(); }) {
  timer_.start_repeating(kLookInterval);
}

DirectoryWatch::~DirectoryWatch() {
  // The worker still posts the end of a running scan; that task must not use this object.
  *alive_ = false;
  worker_->stop();
}

void DirectoryWatch::look() {
  if (looking_ || !may_look_()) return;
  auto next = std::make_shared<std::optional<Found>>();
  const auto submitted = worker_->submit(
      [parent = parent_, last = last_step_, next] { *next = newest_complete(parent, last); },
      [this, alive = alive_, next] {
        if (!*alive) return;
        looking_ = false;
        if (*next) found((*next)->directory, (*next)->step);
      });
  looking_ = submitted.has_value();
}

void DirectoryWatch::found(const std::filesystem::path& directory, std::uint64_t step) {
  last_step_ = step;
  on_complete_(directory, step);
}

}  // namespace wsync::publish
