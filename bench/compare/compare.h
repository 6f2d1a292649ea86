// What has changed between two runs of `wsync bench`. Pure.
//
// A case that has a baseline in both runs is judged by its ratios, so that a machine that was
// slower as a whole says nothing against it; one that has none, and every case of the suite
// `baseline`, which is about the machine, by its samples. It has changed when
// two things hold: the medians differ by more than a factor (1.05), and the samples lie beside each
// other further than chance puts them (rank_sum.h), all cases of the comparison taken together
// (holm.h): the probability that any case of an unchanged program is called changed is at most
// 0.05. A case with fewer than five samples on a side, or with so few that among all those cases no
// samples could have said more, is one that has too few rounds to tell, and never the same.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/harness/result.h"
#include "shared/base/error.h"

namespace wsync::bench {

inline constexpr double kFactorDefault = 1.05;
inline constexpr double kFactorMax = 100;
inline constexpr double kChanceMost = 0.05;  // of any false change in a comparison
inline constexpr std::size_t kJudgedSamplesMin = 5;

enum class Verdict : std::uint8_t { kSame, kFaster, kSlower, kTooFew };
[[nodiscard]] std::string_view verdict_name(Verdict verdict) noexcept;

struct CaseChange {
  std::string suite;
  std::string name;
  std::string unit;
  double median_a = 0;
  double median_b = 0;
  // B's speed by A's, of medians: above 1, B is better. Nothing where a median is not above 0 and
  // they are not equal.
  std::optional<double> speed;
  bool by_ratio = false;  // judged by the shares of their baselines
  std::optional<double> judged_speed;
  double chance = 1;     // of such samples, were nothing changed
  double in_family = 1;  // the same among all cases of the comparison
  Verdict verdict = Verdict::kSame;
};

struct Comparison {
  std::string date_a, date_b, version_a, version_b;
  std::vector<CaseChange> cases;
  std::vector<std::string> only_a, only_b;     // "sync: paused, 4 engines"
  std::vector<std::string> machine_differs;    // "cores: 2 in A, 4 in B"
  std::vector<std::string> parameters_differ;  // of suites of one name that were not compared
  double factor = kFactorDefault;
  [[nodiscard]] std::size_t count(Verdict verdict) const;
};

// Suites are matched by name and parameters, cases by name. kInvalidInput when no case is in both,
// or one has another unit or direction in B.
[[nodiscard]] Result<Comparison> compare(const ResultFile& a, const ResultFile& b,
                                         double factor = kFactorDefault);

[[nodiscard]] nlohmann::json to_json(const Comparison& comparison);
[[nodiscard]] std::string to_text(const Comparison& comparison);

}  // namespace wsync::bench
