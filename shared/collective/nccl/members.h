// Who takes part in a group, and what keeps them from meeting. NCCL finds out about duplicate GPUs
// and unequal versions only in the middle of its rendezvous, and on one side at that; these
// refusals come before, and name host and rank. Pure.
//
// The id of a group (Group::id) carries what the maker's process knows to the others:
//
//   u32 magic | u32 format | u32 ranks of the group | 128 bytes of NCCL's own id
//   | u32 members | members
//   member: string host | u8 has a rank | u32 rank | string GPU | u32 NCCL | u32 driver | u32 build
//
// The first member is the maker's process itself, without a rank; the ranks that had joined there
// when the id was asked for follow.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/error.h"
#include "shared/collective/communicator.h"

namespace wsync::collective::nccl {

// One rank, or a process whose rank is not known yet.
struct Member {
  std::string host;
  std::optional<Rank> rank;
  std::string gpu;                // UUID; empty without a rank
  std::uint32_t nccl = 0;         // 22707 is 2.27.7
  std::uint32_t driver_cuda = 0;  // newest CUDA version that the driver can do: 13000 is 13.0
  std::uint32_t build_cuda = 0;   // CUDA version that the process's wsync was built with

  friend bool operator==(const Member&, const Member&) = default;
};

// "rank 3 on host A", or "a process on host A".
[[nodiscard]] std::string who(const Member& member);

// kRefused when one of them cannot take part in a group at all (a driver older than the build), or
// two of them not in the same one: unequal NCCL versions, one rank twice, one GPU twice.
[[nodiscard]] Result<> check_members(std::span<const Member> members);

inline constexpr std::size_t kUniqueIdBytes = 128;
struct GroupId {
  std::uint32_t size = 0;  // ranks of the group
  std::array<std::byte, kUniqueIdBytes> unique{};
  std::vector<Member> members;

  friend bool operator==(const GroupId&, const GroupId&) = default;
};
[[nodiscard]] Bytes encode(const GroupId& id);
// kInvalidInput, naming the field, for anything that encode() does not make.
[[nodiscard]] Result<GroupId> decode_group_id(std::span<const std::byte> bytes);

}  // namespace wsync::collective::nccl
