#include "bench/harness/paired.h"

#include <cstddef>

namespace wsync::bench {

Result<std::vector<std::vector<double>>> measure_in_turns(std::span<const Contender> contenders,
                                                          const TurnOptions& options,
                                                          const Interrupt& interrupt,
                                                          const OnTurn& on_turn) {
  std::vector<std::vector<double>> samples(contenders.size());
  const unsigned rounds = options.warm_ups + options.rounds;
  const auto total = rounds * static_cast<unsigned>(contenders.size());
  unsigned done = 0;
  for (unsigned round = 0; round < rounds; ++round) {
    for (std::size_t turn = 0; turn < contenders.size(); ++turn) {
      const std::size_t at = round % 2 == 0 ? turn : contenders.size() - 1 - turn;
      WSYNC_TRY(resume(interrupt));
      on_turn(contenders[at].name, done++, total);
      const Result<double> sample = contenders[at].sample();
      if (!sample) return fail(sample.error().with_context(contenders[at].name));
      if (round >= options.warm_ups) samples[at].push_back(*sample);
    }
  }
  return samples;
}

}  // namespace wsync::bench
