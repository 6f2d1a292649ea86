#include "bench/gpu/changed_checkpoint.h"

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <vector>

#include "shared/base/format.h"

namespace wsync::bench {
namespace {

constexpr std::uint64_t kChangedElementBytes = 2;

// The header of a file of weights, after its length in 8 bytes, is left alone.
Result<> change_file(const std::filesystem::path& from, const std::filesystem::path& to,
                     double share, std::mt19937_64& random) {
  std::ifstream in(from, std::ios::binary);
  std::vector<char> bytes(std::filesystem::file_size(from));
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!in) return fail(ErrorCode::kIo, from.string() + " cannot be read");
  std::uint64_t header = 0;
  if (bytes.size() >= sizeof header) std::memcpy(&header, bytes.data(), sizeof header);
  if (bytes.size() < sizeof header || header > bytes.size() - sizeof header)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} has {} bytes, expected a header of {} bytes and weights",
                            from.string(), bytes.size(), header));
  std::geometric_distribution<std::uint64_t> skipped(share);
  for (std::uint64_t at = sizeof header + header + skipped(random) * kChangedElementBytes;
       at < bytes.size(); at += (1 + skipped(random)) * kChangedElementBytes)
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
  std::ofstream out(to, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) return fail(ErrorCode::kIo, to.string() + " cannot be written");
  return {};
}

}  // namespace

Result<> write_changed_checkpoint(const std::string& from, const std::string& to, double share) {
  std::error_code error;
  std::filesystem::create_directory(to, error);
  if (error) return fail(ErrorCode::kIo, fmt::format("{}: {}", to, error.message()));
  std::mt19937_64 random(1);
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    const auto target = std::filesystem::path(to) / entry.path().filename();
    if (entry.path().extension() == ".safetensors") {
      WSYNC_TRY(change_file(entry.path(), target, share, random));
      continue;
    }
    std::filesystem::copy_file(entry.path(), target, error);
    if (error) return fail(ErrorCode::kIo, fmt::format("{}: {}", target.string(), error.message()));
  }
  return {};
}

}  // namespace wsync::bench
