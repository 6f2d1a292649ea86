// SealedMemory: a memfd that its maker fills once. It is sealed then, so nobody can change its
// bytes or its size any more, the maker included. Other processes map its descriptor read-only.
//
// Immutable; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "shared/base/error.h"
#include "shared/base/shared_memory.h"
#include "shared/base/unique_fd.h"

namespace wsync {

class SealedMemory {
 public:
  // Makes it of these parts, one after the other, which are not all empty. `name` is shown by
  // /proc. kResourceExhausted if there is not enough memory; kIo if a system call fails.
  [[nodiscard]] static Result<SealedMemory> create(
      const std::string& name, std::span<const std::span<const std::byte>> parts);
  // Takes over the descriptor of sealed memory of at most so many bytes, and maps it. Errors as
  // map(), and kRefused if it is larger.
  [[nodiscard]] static Result<SealedMemory> adopt(UniqueFd fd, std::uint64_t max_bytes);
  // Maps the memory of a descriptor, which is borrowed for the call, with all its pages, by so many
  // threads. kRefused unless it is sealed and has exactly this size; errors as MappedRegion::map().
  [[nodiscard]] static Result<MappedRegion> map(int fd, std::uint64_t bytes, unsigned threads = 1);

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return region_.bytes(); }
  // A new read-only descriptor for another process.
  [[nodiscard]] Result<UniqueFd> share() const;

 private:
  SealedMemory(UniqueFd fd, MappedRegion region) : fd_(std::move(fd)), region_(std::move(region)) {}
  UniqueFd fd_;
  MappedRegion region_;
};

}  // namespace wsync
