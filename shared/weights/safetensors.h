// Reading and writing safetensors files.
//
//   8 bytes   N, little-endian
//   N bytes   UTF-8 JSON: one object of tensors, {"name": {"dtype", "shape", "data_offsets"}}, and
//             optionally "__metadata__", string to string
//   data      the bytes of the tensors, without holes, overlap or trailing bytes
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

// How strict a reader is. Strict rejects everything that the format's specification forbids.
// Lenient accepts what the reference reader accepts: a header that starts with white space, a
// duplicate name (the last one counts), and unknown keys in the entry of a tensor.
enum class SafetensorsRules : std::uint8_t { kStrict, kLenient };

struct SafetensorsEntry {
  TensorInfo info;
  std::uint64_t begin = 0;  // relative to the data; info's byte size is end - begin
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // in file order
  std::map<std::string, std::string> metadata;
  std::uint64_t data_begin = 0;  // 8 + N: where the data starts in the file
};

// Checks and parses a header. `json` is the N bytes after the length. kInvalidInput with one line
// that names the tensor and the rule; the caller adds the file name.
[[nodiscard]] Result<SafetensorsHeader> parse_safetensors_header(
    std::span<const std::byte> json, std::uint64_t file_bytes,
    SafetensorsRules rules = SafetensorsRules::kStrict);

// How the bytes of a file are read. User code never touches a mapped page in either mode: if the
// file shrinks and a page disappears, a system call fails instead of raising SIGBUS.
enum class SafetensorsAccess : std::uint8_t {
  kRead,  // pread; for network file systems
  kMap,   // mmap and process_vm_readv; pread where the system forbids that call
};

struct SafetensorsOptions {
  SafetensorsRules rules = SafetensorsRules::kStrict;
  SafetensorsAccess access = SafetensorsAccess::kRead;
};

// One open file. Thread: read() may be called from several threads at once.
class SafetensorsFile {
 public:
  // Opens the file and checks its header. Errors name the file: kNotFound, kIo, or kInvalidInput
  // naming the tensor and the rule.
  [[nodiscard]] static Result<SafetensorsFile> open(const std::string& path,
                                                    SafetensorsOptions options = {});
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  // The tensors in file order.
  [[nodiscard]] std::span<const SafetensorsEntry> tensors() const noexcept {
    return header_.tensors;
  }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept {
    return header_.metadata;
  }
  // Copies bytes [offset, offset + out.size()) of a tensor. kInvalidInput if the range is not
  // inside the tensor, or if the file was truncated or changed since it was opened; the contents of
  // `out` are then unspecified. Replacing the file by rename is not a change: this object keeps the
  // old file open.
  [[nodiscard]] Result<> read(std::size_t tensor, std::uint64_t offset,
                              std::span<std::byte> out) const;

 private:
  // Identifies the state of the file when it was opened.
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
  // Copies bytes of the file. Returns false if the mapping cannot be used; the caller then uses
  // pread.
  [[nodiscard]] bool copy_from_map(std::uint64_t at, std::span<std::byte> out) const;
  [[nodiscard]] Result<> copy_with_pread(std::uint64_t at, std::span<std::byte> out) const;

  std::string path_;
  UniqueFd fd_;
  Identity identity_;
  SafetensorsHeader header_;
  const std::byte* mapping_ = nullptr;  // identity_.bytes bytes long
};

// Fills `out` with bytes [offset, offset + out.size()) of tensor `index` in the list of the call.
using TensorSource =
    std::function<Result<>(std::size_t index, std::uint64_t offset, std::span<std::byte> out)>;

// Writes a file in the layout of the reference writer: wider dtypes first, then by name, and the
// header padded to 8 bytes. Needs memory for one chunk only. The bytes go to a temporary file
// beside `path`, which is synced and renamed when it is complete. A reader sees the old file or the
// new one. A failure (kResourceExhausted on a full disk) keeps the old file and removes the
// temporary one. kInvalidInput for a duplicate name, text that is not UTF-8, or a header over the
// limit.
[[nodiscard]] Result<> write_safetensors(const std::string& path,
                                         std::span<const TensorInfo> tensors,
                                         const std::map<std::string, std::string>& metadata,
                                         const TensorSource& source);

}  // namespace wsync
