// Reading and writing safetensors files.
//
//   8 bytes   N, little-endian
//   N bytes   UTF-8 JSON: one object of tensors, {"name": {"dtype", "shape", "data_offsets"}}, and
//             optionally "__metadata__", string to string
//   data      the tensors' bytes, without holes, overlap or trailing bytes
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/unique_fd.h"
#include "shared/weights/manifest.h"

namespace wsync {

// What a reader insists on. Strict refuses everything that the format's text forbids; lenient
// accepts what the reference reader accepts: a header that starts with white space, a name given
// twice (the last one counts), unknown keys inside a tensor's entry.
enum class SafetensorsRules : std::uint8_t { kStrict, kLenient };

struct SafetensorsEntry {
  TensorInfo info;
  std::uint64_t begin = 0;  // relative to the data; info's byte size is end - begin
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // in file order
  std::map<std::string, std::string> metadata;
  std::uint64_t data_begin = 0;  // 8 + N: where data starts in the file
};

// Checks and parses a header: `json` is the N bytes after the length. kInvalidInput with one line
// that names the tensor and the rule; the caller adds the file.
[[nodiscard]] Result<SafetensorsHeader> parse_safetensors_header(
    std::span<const std::byte> json, std::uint64_t file_bytes,
    SafetensorsRules rules = SafetensorsRules::kStrict);

// How a file's bytes are reached. Neither ever touches a mapped page from user code: a page that
// vanished under a shrunk file is an error of a system call, never a SIGBUS.
enum class SafetensorsAccess : std::uint8_t {
  kRead,  // pread; right for network file systems
  kMap,   // the file is mapped and copied out with process_vm_readv; where the system forbids that
          // call, with pread
};

struct SafetensorsOptions {
  SafetensorsRules rules = SafetensorsRules::kStrict;
  SafetensorsAccess access = SafetensorsAccess::kRead;
};

// One open file. Thread: read() may be called from several threads at once.
class SafetensorsFile {
 public:
  // Opens and checks the header. Errors name the file: kNotFound, kIo, or kInvalidInput naming the
  // tensor and the rule.
  [[nodiscard]] static Result<SafetensorsFile> open(const std::string& path,
                                                    SafetensorsOptions options = {});
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  // In file order.
  [[nodiscard]] std::span<const SafetensorsEntry> tensors() const noexcept {
    return header_.tensors;
  }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept {
    return header_.metadata;
  }
  // Copies bytes [offset, offset + out.size()) of a tensor. kInvalidInput when the range is not
  // inside it, or when the file was truncated or changed since it was opened; out's contents are
  // then unspecified. (A file replaced by rename is not changed: this object keeps the old one.)
  [[nodiscard]] Result<> read(std::size_t tensor, std::uint64_t offset,
                              std::span<std::byte> out) const;

 private:
  // What tells that a file is still the one that was opened.
  struct Identity {
    std::uint64_t bytes = 0;
    std::int64_t modified_s = 0;
    std::int64_t modified_ns = 0;
    friend bool operator==(const Identity&, const Identity&) = default;
  };
  SafetensorsFile() = default;
  [[nodiscard]] static Result<Identity> identity_of(int fd, const std::string& path);
  [[nodiscard]] Result<> read_header(SafetensorsRules rules);
  [[nodiscard]] Result<> check_unchanged() const;
  void map();
  void unmap() noexcept;
  // Copies file bytes; false when the mapping cannot be used and pread must.
  [[nodiscard]] bool copy_from_map(std::uint64_t at, std::span<std::byte> out) const;
  [[nodiscard]] Result<> copy_with_pread(std::uint64_t at, std::span<std::byte> out) const;

  std::string path_;
  UniqueFd fd_;
  Identity identity_;
  SafetensorsHeader header_;
  const std::byte* mapping_ = nullptr;  // of identity_.bytes bytes
};

// Fills `out` with bytes [offset, offset + out.size()) of tensor `index` of the list given along.
using TensorSource =
    std::function<Result<>(std::size_t index, std::uint64_t offset, std::span<std::byte> out)>;

// Writes a file as the reference writer lays it out: wider dtypes first, then by name; header
// padded to 8 bytes. Needs memory for one chunk only. The bytes go to a temporary file beside
// `path`, which is synced and renamed when complete: a reader sees the old file or the new one, and
// a failure (kResourceExhausted on a full disk) leaves neither changed nor the temporary file.
// kInvalidInput for a name given twice, text that is not UTF-8, or a header over the limit.
[[nodiscard]] Result<> write_safetensors(const std::string& path,
                                         std::span<const TensorInfo> tensors,
                                         const std::map<std::string, std::string>& metadata,
                                         const TensorSource& source);

}  // namespace wsync
