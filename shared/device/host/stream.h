// Streams of host devices. The worker thread performs the copies.
#pragma once

#include <span>
#include <stop_token>
#include <string>

#include "shared/device/worker_stream.h"

namespace wsync::device::host {

class HostStream final : public WorkerStream {
 public:
  HostStream(DeviceKind kind, std::string name) : WorkerStream(kind, std::move(name)) {}
  ~HostStream() override { close(); }

  [[nodiscard]] Result<> copy_to_device(const Region& to,
                                        std::span<const std::byte> source) override;
  [[nodiscard]] Result<> copy_rows_to_device(const Region& to, std::span<const std::byte> source,
                                             const RowShape& rows) override;
  [[nodiscard]] Result<> copy_to_host(std::span<std::byte> to, const Region& from) override;
  [[nodiscard]] Result<> copy_pieces(std::span<const Piece> pieces,
                                     std::span<SplitSum> sums) override;
  [[nodiscard]] Result<> change_words(std::span<const WordBlock> blocks,
                                      std::span<SplitSum> sums) override;

 private:
  // Copies in windows of a few MiB, so that a stream that is being destroyed ends its copy early
  // with kCancelled.
  [[nodiscard]] Result<> copy(std::byte* to, const std::byte* from, std::uint64_t bytes,
                              const std::stop_token& stop) override;
};

}  // namespace wsync::device::host
