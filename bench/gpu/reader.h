// A process that reads GPU buffers of another process, as an engine does.
//
// The process exchanges lines with the process that started it. Its standard input:
//   import <bytes> <hex>: maps the memory of a handle. Its descriptor has been sent through the
//     socket before. Mappings are numbered from 0.
//   copy <number> <bytes> <offset> <times>: copies that many bytes, as make_batch() does, to
//     `offset` of its own memory, `times` times, one after the other.
//
// Its standard output: "ready", "imported <number>", "copied <ns> <check>" (check_of() of the last
// copy), or "failed <why>".
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/harness/child.h"
#include "shared/base/error.h"
#include "shared/base/unique_fd.h"
#include "shared/device/device.h"

namespace wsync::bench {

struct ReaderOptions {
  std::uint32_t gpu = 0;
  std::uint32_t device_index = 0;
  std::uint64_t bytes = 0;  // bytes of its own memory
  std::string socket;       // where the process that started it listens; empty: it imports nothing
};

// Runs the process until the end of its input. Returns an error if it could not start.
[[nodiscard]] Result<> run_reader(const ReaderOptions& options);

// The side that starts the process. The destructor lets the process unmap everything and end.
// Thread: one at a time. The process dies with the thread that started it.
class Reader {
 public:
  Reader(Reader&&) noexcept = default;
  Reader& operator=(Reader&&) = delete;
  ~Reader();
  // `executable`: wsync. kPeerLost or kRefused if the process could not start.
  [[nodiscard]] static Result<Reader> start(const std::string& executable,
                                            const std::string& log_file,
                                            const ReaderOptions& options,
                                            const Interrupt& interrupt);
  // Returns the number of the mapping.
  [[nodiscard]] Result<std::size_t> import(const device::MemoryHandle& handle);
  struct Copied {
    std::chrono::nanoseconds taken{};  // measured in that process
    std::uint64_t check = 0;
  };
  struct Copy {
    std::size_t mapping = 0;
    std::uint64_t bytes = 0;
    std::uint64_t offset = 0;
    unsigned times = 1;
  };
  [[nodiscard]] Result<Copied> copy(const Copy& copy);
  [[nodiscard]] std::uint64_t bytes() const noexcept { return options_.bytes; }

 private:
  Reader(Child child, ReaderOptions options, const Interrupt& interrupt)
      : child_(std::make_unique<Child>(std::move(child))),
        options_(std::move(options)),
        interrupt_(&interrupt) {}
  // Returns the text after `verb` in the next line.
  [[nodiscard]] Result<std::string> answer(const std::string& verb);

  std::unique_ptr<Child> child_;
  ReaderOptions options_;
  UniqueFd socket_;  // on which descriptors are sent to the process
  const Interrupt* interrupt_;
};

}  // namespace wsync::bench
