// Checks the members of a group before NCCL's rendezvous. NCCL detects duplicate GPUs only during
// the rendezvous; these checks run earlier and name host and rank. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "shared/base/error.h"
#include "shared/broadcast/communicator.h"

namespace wsync::collective::nccl {

// One rank, or a process before any of its ranks has joined.
struct Member {
  std::string host;
  std::optional<Rank> rank;
  std::string gpu;                // UUID; empty without a rank
  std::uint32_t driver_cuda = 0;  // newest CUDA version of the driver: 13000 is 13.0
  std::uint32_t build_cuda = 0;   // CUDA version that this wsync was built with

  friend bool operator==(const Member&, const Member&) = default;
};

// Returns "rank 3 on host A", or "a process on host A".
[[nodiscard]] std::string who(const Member& member);

// Returns kRefused if a member cannot take part in any group (its driver is older than the build),
// or if two members cannot be in the same group (one GPU twice, unless `ranks_share_gpus`).
[[nodiscard]] Result<> check_members(std::span<const Member> members,
                                     bool ranks_share_gpus = false);

}  // namespace wsync::collective::nccl
