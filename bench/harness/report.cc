#include "bench/harness/report.h"

#include "shared/base/format.h"

namespace wsync::bench {
namespace {

constexpr double kQuiet = 0.1;  // a smaller share of the cores' time is not reported as load

}  // namespace

nlohmann::json spread_json(const Spread& spread) {
  return {{"median", spread.median},
          {"lower_quartile", spread.lower_quartile},
          {"upper_quartile", spread.upper_quartile},
          {"min", spread.min},
          {"max", spread.max}};
}

nlohmann::json machine_json(const Machine& machine) {
  return {{"cpu", machine.cpu},
          {"cores", machine.cores},
          {"layout", machine.layout},
          {"virtual_machine", machine.virtual_machine},
          {"memory_bytes", machine.memory_bytes},
          {"kernel", machine.kernel},
          {"huge_pages", machine.huge_pages},
          {"shared_huge_pages", machine.shared_huge_pages},
          {"copy_kind", machine.copy_kind}};
}

std::string processor_text(const Machine& machine) {
  return fmt::format("{}{}", machine.cpu, machine.virtual_machine ? " (virtual machine)" : "");
}

std::vector<std::string> load_sentences(double others_busy, double stolen) {
  std::vector<std::string> sentences;
  if (others_busy > kQuiet)
    sentences.push_back(
        fmt::format("others used {:.0f} % of the cores before a case; read ratios, not times",
                    100 * others_busy));
  if (stolen > kQuiet / 10)
    sentences.push_back(fmt::format("the host withheld {:.0f} % of the cores' time", 100 * stolen));
  return sentences;
}

std::string load_notes(double others_busy, double stolen) {
  std::string text;
  for (const std::string& sentence : load_sentences(others_busy, stolen))
    text += "note: " + sentence + "\n";
  return text;
}

}  // namespace wsync::bench
