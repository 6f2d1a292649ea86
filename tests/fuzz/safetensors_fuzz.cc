// Fuzzes the safetensors header parser. Input: 2 bytes, the number of data bytes (little-endian);
// then the header's JSON.
#include <cstdint>
#include <cstring>
#include <span>

#include "shared/base/check.h"
#include "shared/weights/manifest.h"
#include "shared/weights/safetensors.h"

namespace {

using wsync::SafetensorsHeader;
using wsync::SafetensorsRules;

// What an accepted header promises to everybody who reads by it.
void check_accepted(const SafetensorsHeader& header, std::uint64_t data_bytes) {
  std::uint64_t at = 0;
  std::vector<wsync::TensorInfo> tensors;
  for (const wsync::SafetensorsEntry& entry : header.tensors) {
    WSYNC_CHECK(entry.begin == at && entry.end >= entry.begin, "tensors cover the data in order");
    at = entry.end;
    const auto bytes = entry.info.byte_size();
    WSYNC_CHECK(bytes && *bytes == entry.end - entry.begin, "a tensor's range has its size");
    tensors.push_back(entry.info);
  }
  WSYNC_CHECK(at == data_bytes, "every byte of the data belongs to a tensor");
  const auto manifest = wsync::Manifest::create(std::move(tensors));
  if (!manifest) return;  // an empty name, for one
  WSYNC_CHECK(manifest->total_bytes() == data_bytes, "a manifest has the same bytes");
  wsync::ByteWriter writer;
  manifest->encode(writer);
  wsync::ByteReader reader(writer.buffer());
  const auto decoded = wsync::Manifest::decode(reader);
  WSYNC_CHECK(decoded && *decoded == *manifest, "a manifest decodes to itself");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  std::uint16_t data_bytes = 0;
  std::memcpy(&data_bytes, data, 2);
  const auto json = std::as_bytes(std::span(data + 2, size - 2));
  const std::uint64_t file_bytes = 8 + json.size() + data_bytes;
  const auto strict = wsync::parse_safetensors_header(json, file_bytes, SafetensorsRules::kStrict);
  const auto lenient =
      wsync::parse_safetensors_header(json, file_bytes, SafetensorsRules::kLenient);
  if (strict) {
    check_accepted(*strict, data_bytes);
    WSYNC_CHECK(lenient.has_value(), "lenient accepts what strict accepts");
  }
  if (lenient) check_accepted(*lenient, data_bytes);
  if (!strict) {
    const std::string& message = strict.error().message();
    WSYNC_CHECK(!message.empty() && message.find('\n') == std::string::npos, "one line says why");
  }
  return 0;
}
