// DirectoryWatch: finds checkpoint directories named step_N that appear next to a first one. The
// newest one that is complete, which means that it satisfies every rule of a checkpoint directory,
// is reported once. Those of lower steps are then passed over: who is behind does not publish each
// in turn.
//
// Thread: the loop's; directories are read on a worker thread. The loop must outlive the watch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "shared/loop/loop.h"
#include "shared/loop/timer.h"
#include "shared/loop/worker.h"

namespace wsync::publish {

// N of a directory named step_N, N > 0; std::nullopt for any other name.
[[nodiscard]] std::optional<std::uint64_t> step_of(const std::filesystem::path& directory);

class DirectoryWatch {
 public:
  using OnComplete =
      std::function<void(const std::filesystem::path& directory, std::uint64_t step)>;
  using MayLook = std::function<bool()>;
  // Watches the parent of `checkpoint` for steps above its own, or above 0 if its name is not
  // step_N. It looks only while `may_look` returns true. Both functions are called on the loop,
  // never after the destruction of the watch.
  DirectoryWatch(Loop& loop, const std::filesystem::path& checkpoint, MayLook may_look,
                 OnComplete on_complete);
  ~DirectoryWatch();
  DirectoryWatch(const DirectoryWatch&) = delete;
  DirectoryWatch& operator=(const DirectoryWatch&) = delete;

 private:
  void look();
  void found(const std::filesystem::path& directory, std::uint64_t step);

  const std::filesystem::path parent_;
  MayLook may_look_;
  OnComplete on_complete_;
  std::uint64_t last_step_;
  bool looking_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<Worker> worker_;
  Timer timer_;
};

}  // namespace wsync::publish
