// Rewrites a safetensors file with wsync's reader and writer, for the reference package to judge.
//
// Usage: safetensors_tool IN OUT
#include <cstdio>
#include <vector>

#include "shared/weights/safetensors.h"

int main(int argc, char** argv) {
  using namespace wsync;
  if (argc != 3) {
    std::fputs("usage: safetensors_tool IN OUT\n", stderr);
    return 2;
  }
  const auto file = SafetensorsFile::open(argv[1], {.access = SafetensorsAccess::kMap});
  if (!file) {
    std::fprintf(stderr, "%s\n", file.error().message().c_str());
    return 2;
  }
  std::vector<TensorInfo> tensors;
  for (const SafetensorsEntry& entry : file->tensors()) tensors.push_back(entry.info);
  const auto written =
      write_safetensors(argv[2], tensors, file->metadata(),
                        [&](std::size_t i, std::uint64_t offset, std::span<std::byte> out) {
                          return file->read(i, offset, out);
                        });
  if (written) return 0;
  std::fprintf(stderr, "%s\n", written.error().message().c_str());
  return 1;
}
