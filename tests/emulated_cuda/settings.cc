#include "tests/emulated_cuda/settings.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "tests/emulated_cuda/errors.h"

namespace emulated_cuda {
namespace {

constexpr int kMaxGpus = 16;

[[noreturn]] void refuse(const char* variable, std::string_view value, const char* expected) {
  std::fprintf(stderr, "emulated driver: %s is '%.*s'; expected %s\n", variable,
               static_cast<int>(value.size()), value.data(), expected);
  std::abort();
}

const char* text_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

bool read_number(std::string_view text, std::uint64_t& number) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  return code == std::errc{} && end == text.data() + text.size();
}

std::uint64_t number_of(const char* variable, std::uint64_t otherwise, std::uint64_t max) {
  const std::string_view text = text_of(variable);
  if (text.empty()) return otherwise;
  std::uint64_t number = 0;
  if (!read_number(text, number) || number > max)
    refuse(variable, text, ("a number up to " + std::to_string(max)).c_str());
  return number;
}

std::vector<std::string_view> split(std::string_view text, char by) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(by), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

// "3" the third call, "3+" the third and all later ones, "*" all.
bool read_when(std::string_view text, Fault& fault) {
  constexpr auto kAll = std::numeric_limits<std::uint64_t>::max();
  fault.to = kAll;
  if (text == "*") return true;
  const bool later = !text.empty() && text.back() == '+';
  if (later) text.remove_suffix(1);
  if (!read_number(text, fault.from) || fault.from == 0) return false;
  if (!later) fault.to = fault.from;
  return true;
}

bool read_fault(std::string_view text, Fault& fault) {
  const auto parts = split(text, ':');
  if (parts.size() != 3 || parts[0].empty() || !read_when(parts[1], fault)) return false;
  fault.name = parts[0];
  if (parts[2] == "hang") {
    fault.kind = Fault::Kind::kHang;
    return !fault.name.starts_with("cu") || fault.name.ends_with("Query");
  } else if (parts[2] == "flip") {
    fault.kind = Fault::Kind::kFlip;
    return fault.name == "copy" || fault.name == "kernel";
  } else {
    fault.error = error_of(parts[2]);
  }
  return fault.error > 0;
}

std::vector<Fault> read_faults() {
  constexpr const char* kVariable = "WSYNC_EMULATED_CUDA_FAULTS";
  std::vector<Fault> faults;
  for (const auto part : split(text_of(kVariable), ',')) {
    if (!read_fault(part, faults.emplace_back()))
      refuse(kVariable, part,
             "NAME:WHEN:WHAT, such as cuMemAlloc_v2:3:CUDA_ERROR_OUT_OF_MEMORY, "
             "cuStreamQuery:2+:hang or copy:*:flip");
  }
  return faults;
}

Mode read_mode() {
  constexpr const char* kVariable = "WSYNC_EMULATED_CUDA_MODE";
  const std::string_view text = text_of(kVariable);
  if (text.empty()) return Mode::kUsual;
  if (text == "none") return Mode::kNoGpu;
  if (text == "old") return Mode::kOldDriver;
  if (text == "mismatch") return Mode::kMismatch;
  refuse(kVariable, text, "none, old or mismatch");
}

std::string uuid_text(int number) {
  unsigned char bytes[16];
  gpu_uuid(number, bytes);
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", bytes[i]);
    text += digits;
  }
  return text;
}

// As NVIDIA's: numbers or beginnings of UUIDs; the list ends at the first that is no GPU.
std::vector<int> read_visible(int gpus) {
  std::vector<int> visible;
  const char* named = std::getenv("CUDA_VISIBLE_DEVICES");
  if (named == nullptr) {
    for (int i = 0; i < gpus; ++i) visible.push_back(i);
    return visible;
  }
  for (const auto part : split(named, ',')) {
    int found = -1;
    for (int i = 0; i < gpus; ++i) {
      if (part == std::to_string(i) || (part.starts_with("GPU-") && uuid_text(i).starts_with(part)))
        found = i;
    }
    if (found < 0) break;
    visible.push_back(found);
  }
  return visible;
}

Settings read_settings() {
  Settings all;
  all.mode = read_mode();
  all.gpus = static_cast<int>(number_of("WSYNC_EMULATED_GPUS", 2, kMaxGpus));
  all.visible = read_visible(all.gpus);
  all.memory_bytes =
      number_of("WSYNC_EMULATED_CUDA_MEMORY", all.memory_bytes, std::uint64_t{1} << 46U);
  const std::string_view delay = text_of("WSYNC_EMULATED_CUDA_DELAY_US");
  const auto parts = split(delay, ',');
  if (parts.size() > 2 || (!parts.empty() && !read_number(parts[0], all.delay_us)) ||
      (parts.size() == 2 && !read_number(parts[1], all.seed)))
    refuse("WSYNC_EMULATED_CUDA_DELAY_US", delay, "microseconds, or microseconds,seed");
  all.register_us_per_mib =
      number_of("WSYNC_EMULATED_CUDA_REGISTER_US", all.register_us_per_mib, 1'000'000);
  all.peers = number_of("WSYNC_EMULATED_CUDA_PEERS", 1, 1) == 1;
  all.reads_read_only = number_of("WSYNC_EMULATED_CUDA_READ_ONLY_REGISTER", 0, 1) == 1;
  all.descriptors = number_of("WSYNC_EMULATED_CUDA_DESCRIPTORS", 1, 1) == 1;
  all.machine = text_of("WSYNC_EMULATED_CUDA_MACHINE");
  all.report = text_of("WSYNC_EMULATED_CUDA_REPORT");
  all.faults = read_faults();
  return all;
}

}  // namespace

const Settings& settings() {
  static const Settings* const once = new Settings(read_settings());  // used until the process ends
  return *once;
}

void gpu_uuid(int number, unsigned char* to) {
  // FNV-1a of the host's name and the number, twice with other beginnings.
  const char* const host = text_of("WSYNC_EMULATED_CUDA_HOST");
  for (int half = 0; half < 2; ++half) {
    std::uint64_t hash = 0xcbf29ce484222325U + static_cast<std::uint64_t>(half);
    const auto mix = [&hash](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3U; };
    for (const char* at = host; *at != '\0'; ++at) mix(static_cast<unsigned char>(*at));
    for (int i = 0; i < 8; ++i) mix(static_cast<unsigned char>(i == 0 ? number : i));
    for (int i = 0; i < 8; ++i)
      to[half * 8 + i] = static_cast<unsigned char>(hash >> (8U * static_cast<unsigned>(i)));
  }
}

}  // namespace emulated_cuda
