// KeptParts: which parts the ranks on other hosts have to keep, as rank 0 tells them. Each message
// names all of them, so that one that was lost is repaired by the next one.
//
// Thread: the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "shared/control/messages.h"

namespace wsync::plugin {

class KeptParts {
 public:
  using Send = std::function<void(std::uint32_t rank, control::Message message)>;
  explicit KeptParts(Send send) : send_(std::move(send)) {}

  // The question for the parts of a step. Each rank is told to keep the step before it is asked.
  void ask(std::uint64_t question, const std::map<std::uint32_t, control::PartWanted>& orders);
  // The version that is made of the newest question for this step is served from now on, by the
  // ranks that have a part of it.
  void serve(const control::KeptPart& part);
  // The parts of this question are needed no longer.
  void release(std::uint64_t question);
  // The rank has connected, perhaps again.
  void connected(std::uint32_t rank) { notify(rank); }

 private:
  struct Kept {
    control::KeptPart part;
    std::set<std::uint32_t> ranks;
  };
  void notify(std::uint32_t rank);

  const Send send_;
  std::map<std::uint64_t, Kept> kept_;  // by question
};

}  // namespace wsync::plugin
