#include "trainer_side/training/run_state.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/base/format.h"
#include "shared/weights/safetensors.h"
#include "trainer_side/training/checkpoint.h"

namespace wsync::training {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFormat = "1";
constexpr std::string_view kMeanPrefix = "mean/";
constexpr std::string_view kVariancePrefix = "variance/";

std::string optimizer_path(const std::string& path) {
  return path + "/optimizer/state.safetensors";
}

using Metadata = std::map<std::string, std::string>;

// Visits the facts with their names in the metadata of the optimizer's file.
template <class Facts, class Visit>
void for_each_number(Facts& facts, const Visit& visit) {
  visit("step", facts.step);
  visit("data_seed", facts.data_seed);
  visit("dp", facts.dp);
  visit("microbatches", facts.microbatches);
  visit("sequences", facts.sequences);
  visit("sequence", facts.sequence);
}

Metadata write_facts(const RunFacts& facts) {
  Metadata metadata{{"format", std::string(kFormat)}, {"text", facts.text.to_string()}};
  for_each_number(facts,
                  [&](const char* key, auto value) { metadata[key] = std::to_string(value); });
  return metadata;
}

Result<RunFacts> read_facts(const SafetensorsFile& file) {
  const auto text_of = [&](const char* key) {
    const auto found = file.metadata().find(key);
    return found == file.metadata().end() ? std::string_view() : std::string_view(found->second);
  };
  if (text_of("format") != kFormat)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: its metadata has format '{}'; a state of a training run that this "
                            "version reads has '{}'",
                            file.path(), text_of("format"), kFormat));
  RunFacts facts;
  std::string wrong;
  for_each_number(facts, [&](const char* key, auto& value) {
    const std::string_view text = text_of(key);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || error != std::errc() || end != text.data() + text.size()) wrong = key;
  });
  const Result<Digest> digest = Digest::parse(text_of("text"));
  if (!digest) wrong = "text";
  if (!wrong.empty())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: '{}' of its metadata is '{}', which is not a valid value",
                            file.path(), wrong, text_of(wrong.c_str())));
  facts.text = *digest;
  return facts;
}

Result<> write_optimizer(const std::string& directory, const RunState& state) {
  std::error_code error;
  if (!fs::create_directory(directory + "/optimizer", error))
    return fail_errno("cannot create directory " + directory + "/optimizer", error.value());
  std::vector<TensorInfo> infos;
  std::vector<std::span<const float>> values;
  for (const auto& [prefix, set] :
       {std::pair{kMeanPrefix, &state.mean}, std::pair{kVariancePrefix, &state.variance}})
    for (const moe::Parameter& parameter : set->parameters()) {
      infos.push_back({.name = std::string(prefix) + parameter.name,
                       .dtype = DType::kF32,
                       .shape = parameter.shape});
      values.push_back(set->values(parameter.name));
    }
  return write_safetensors(
      optimizer_path(directory), infos, write_facts(state.facts),
      [&](std::size_t i, std::uint64_t offset, std::span<std::byte> out) -> Result<> {
        std::memcpy(out.data(), std::as_bytes(values[i]).data() + offset, out.size());
        return {};
      });
}

Result<> read_optimizer(const SafetensorsFile& file, RunState& state) {
  std::map<std::string_view, std::size_t> found;
  for (std::size_t i = 0; i < file.tensors().size(); ++i) found[file.tensors()[i].info.name] = i;
  for (const auto& [prefix, set] :
       {std::pair{kMeanPrefix, &state.mean}, std::pair{kVariancePrefix, &state.variance}})
    for (const moe::Parameter& parameter : set->parameters()) {
      const auto tensor = found.find(std::string(prefix) + parameter.name);
      if (tensor == found.end())
        return fail(ErrorCode::kInvalidInput,
                    fmt::format("{}: {}{} is missing", file.path(), prefix, parameter.name));
      const TensorInfo& info = file.tensors()[tensor->second].info;
      if (info.dtype != DType::kF32 || info.shape != parameter.shape)
        return fail(ErrorCode::kInvalidInput,
                    fmt::format("{}: {}: expected F32 [{}], found {} [{}]", file.path(), info.name,
                                fmt::join(parameter.shape, ", "), dtype_name(info.dtype),
                                fmt::join(info.shape, ", ")));
      WSYNC_TRY(file.read(tensor->second, 0, std::as_writable_bytes(set->values(parameter.name))));
    }
  return {};
}

// An array of a rank's part of a state: the set that it belongs to, and the elements of the set
// that are the rank's. Rank 0 computes the same list for each rank.
struct Part {
  enum class Kind : std::uint8_t { kWeights, kMean, kVariance };
  Kind kind = Kind::kWeights;
  std::vector<moe::Parameter> parameters;
  std::size_t begin = 0;  // index in the array of these parameters
  std::size_t end = 0;
};

std::vector<Part> parts_of(const TrainingOptions& options, std::uint32_t rank) {
  const Place place = place_of(options.sizes, rank);
  const RankParameters owned = parameters_of(options.sizes, place, options.spec);
  std::vector<Part> parts;
  const auto add = [&](const std::vector<moe::Parameter>& list, std::size_t member,
                       std::size_t members) {
    const std::vector<NormBlock> blocks = norm_blocks(list);
    const std::size_t all = blocks.empty() ? 0 : blocks.back().first + blocks.back().count;
    const std::vector<std::size_t> cuts = shard_cuts(blocks.size(), members);
    const auto element = [&](std::size_t cut) {
      return cut < blocks.size() ? blocks[cut].first : all;
    };
    if (member == 0) parts.push_back({Part::Kind::kWeights, list, 0, all});
    for (const Part::Kind kind : {Part::Kind::kMean, Part::Kind::kVariance})
      parts.push_back({kind, list, element(cuts[member]), element(cuts[member + 1])});
  };
  add(owned.dense, place.replica, options.sizes.dp);
  add(owned.experts, place.replica / options.sizes.ep, options.sizes.dp / options.sizes.ep);
  return parts;
}

// Returns this rank's arrays in the order of parts_of().
std::vector<std::span<float>> arrays_of(TrainingRank& rank) {
  std::vector<std::span<float>> arrays;
  for (Shard& shard : rank.update().shards()) {
    if (shard.team.index() == 0) arrays.push_back(shard.weights->all());
    arrays.push_back(shard.own.mean);
    arrays.push_back(shard.own.variance);
  }
  return arrays;
}

using PartFilter = bool (*)(Part::Kind kind);
using Put = std::function<void(const Part& part, std::span<const float> array)>;

// Calls `put` on rank 0 with the wanted arrays of every rank, its own first. The other ranks send
// theirs.
Result<> gather_parts(TrainingRank& rank, collective::ProcessGroup* group, PartFilter wanted,
                      const Put& put) {
  const TrainingOptions& options = rank.options();
  const std::vector<std::span<float>> own = arrays_of(rank);
  const std::vector<Part> own_parts = parts_of(options, rank.place().rank);
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (!wanted(own_parts[i].kind)) continue;
    if (rank.place().rank == 0) {
      put(own_parts[i], own[i]);
      continue;
    }
    const collective::Send message{.to = 0, .bytes = std::as_bytes(own[i])};
    WSYNC_TRY(group->exchange({&message, 1}, {}, now() + options.deadline));
  }
  if (rank.place().rank != 0) return {};
  std::vector<float> array;
  for (std::uint32_t other = 1; other < options.sizes.ranks(); ++other)
    for (const Part& part : parts_of(options, other)) {
      if (!wanted(part.kind)) continue;
      array.resize(part.end - part.begin);
      const collective::Receive message{.from = other,
                                        .bytes = std::as_writable_bytes(std::span(array))};
      WSYNC_TRY(group->exchange({}, {&message, 1}, now() + options.deadline));
      put(part, array);
    }
  return {};
}

// Copies between the array of a part and a set of a state.
template <class Copy>
void for_each_piece(const Part& part, ParameterSet& set, const Copy& copy) {
  std::size_t first = 0;
  for (const moe::Parameter& parameter : part.parameters) {
    const std::size_t end = first + parameter.elements();
    const std::size_t from = std::max(first, part.begin);
    const std::size_t to = std::min(end, part.end);
    if (from < to)
      copy(from - part.begin, set.values(parameter.name).subspan(from - first, to - from));
    first = end;
  }
}

ParameterSet& set_of(RunState& state, Part::Kind kind) {
  switch (kind) {
    case Part::Kind::kWeights:
      return state.weights;
    case Part::Kind::kMean:
      return state.mean;
    case Part::Kind::kVariance:
      return state.variance;
  }
  return state.weights;
}

void put_part(const Part& part, std::span<const float> array, ParameterSet& set) {
  for_each_piece(part, set, [&](std::size_t at, std::span<float> piece) {
    std::copy_n(array.begin() + static_cast<std::ptrdiff_t>(at), piece.size(), piece.begin());
  });
}

}  // namespace

std::string state_directory(const std::string& directory, std::uint64_t step) {
  return fmt::format("{}/step_{}", directory, step);
}

Result<> save_state(const std::string& path, const RunState& state) {
  return save_model(
      path, state.spec, state.weights, SavedAs::kFloat32,
      [&](const std::string& directory) { return write_optimizer(directory, state); });
}

Result<RunState> load_state(const std::string& path) {
  const auto optimizer = SafetensorsFile::open(optimizer_path(path));
  if (!optimizer)
    return fail(optimizer.error().with_context(path + " is not a state to resume from"));
  const auto facts = WSYNC_TRY(read_facts(*optimizer));
  auto model = WSYNC_TRY(load_model(path));
  const std::vector<moe::Parameter> all = moe::all_parameters(model.spec);
  RunState state{.spec = model.spec,
                 .facts = facts,
                 .weights = std::move(model.parameters),
                 .mean = ParameterSet(all),
                 .variance = ParameterSet(all)};
  WSYNC_TRY(read_optimizer(*optimizer, state));
  return state;
}

Result<std::optional<RunState>> gather_state(TrainingRank& rank, const RunFacts& facts,
                                             collective::ProcessGroup* group) {
  std::optional<RunState> state;
  if (rank.place().rank == 0) {
    const std::vector<moe::Parameter> all = moe::all_parameters(rank.options().spec);
    state = RunState{.spec = rank.options().spec,
                     .facts = facts,
                     .weights = ParameterSet(all),
                     .mean = ParameterSet(all),
                     .variance = ParameterSet(all)};
  }
  WSYNC_TRY(gather_parts(
      rank, group, [](Part::Kind) { return true; },
      [&](const Part& part, std::span<const float> array) {
        put_part(part, array, set_of(*state, part.kind));
      }));
  return state;
}

Result<std::optional<ParameterSet>> gather_weights(TrainingRank& rank,
                                                   collective::ProcessGroup* group) {
  std::optional<ParameterSet> weights;
  if (rank.place().rank == 0) weights.emplace(moe::all_parameters(rank.options().spec));
  WSYNC_TRY(gather_parts(
      rank, group, [](Part::Kind kind) { return kind == Part::Kind::kWeights; },
      [&](const Part& part, std::span<const float> array) { put_part(part, array, *weights); }));
  return weights;
}

void adopt_weights(TrainingRank& rank, const ParameterSet& all) {
  for (ParameterSet* set : {&rank.weights().dense, &rank.weights().experts})
    for (const moe::Parameter& parameter : set->parameters()) {
      const std::span<const float> from = all.values(parameter.name);
      std::copy(from.begin(), from.end(), set->values(parameter.name).begin());
    }
}

void adopt_state(TrainingRank& rank, const RunState& state) {
  adopt_weights(rank, state.weights);
  const auto adopt = [](const Shard& shard, const ParameterSet& set, const HeldPart& held,
                        std::vector<float>& values) {
    ParameterSet array(shard.weights->parameters());
    for (const moe::Parameter& parameter : array.parameters()) {
      const std::span<const float> from = set.values(parameter.name);
      std::copy(from.begin(), from.end(), array.values(parameter.name).begin());
    }
    std::copy(array.all().begin() + static_cast<std::ptrdiff_t>(held.begin),
              array.all().begin() + static_cast<std::ptrdiff_t>(held.end), values.begin());
  };
  for (Shard& shard : rank.update().shards())
    for (HeldPart* held : {&shard.own, shard.second ? &*shard.second : nullptr}) {
      if (held == nullptr) continue;
      adopt(shard, state.mean, *held, held->mean);
      adopt(shard, state.variance, *held, held->variance);
    }
}

}  // namespace wsync::training
