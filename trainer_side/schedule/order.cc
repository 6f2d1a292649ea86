#include "trainer_side/schedule/order.h"

#include <algorithm>
#include <array>
#include <deque>

#include "shared/base/format.h"

namespace wsync::schedule {
namespace {

constexpr std::array kOrders{Order::kInterleaved, Order::kOneForwardOneBackward,
                             Order::kZeroBubbleH1, Order::kGPipe};

tl::unexpected<Error> refused(std::string why) {
  return fail(ErrorCode::kInvalidInput, std::move(why));
}

// The virtual order: for each group of micro-batches, for each chunk, the micro-batches of the
// group. Backwards use the same order with the chunks mirrored.
std::vector<Cell> virtual_order(const Shape& shape, std::uint32_t group, std::uint32_t rank,
                                Computation computation) {
  std::vector<Cell> order;
  order.reserve(shape.cells());
  for (std::uint32_t first = 0; first < shape.microbatches; first += group) {
    const std::uint32_t end = std::min(first + group, shape.microbatches);
    for (std::uint32_t c = 0; c < shape.vpp; ++c) {
      const std::uint32_t chunk = computation == Computation::kForward ? c : shape.vpp - 1 - c;
      for (std::uint32_t m = first; m < end; ++m)
        order.push_back({chunk * shape.pp + rank, computation, m});
    }
  }
  return order;
}

std::uint32_t group_of(const ScheduleOptions& options) {
  return options.group.value_or(options.order == Order::kGPipe ? options.shape.microbatches
                                                               : options.shape.pp);
}

Result<> check_group(const ScheduleOptions& options) {
  const Shape& shape = options.shape;
  const std::uint32_t group = group_of(options);
  if (shape.vpp == 1 && !options.group) return {};
  if (group < shape.pp)
    return refused(fmt::format(
        "groups of {} micro-batches are smaller than the {} ranks: a chunk would begin before its "
        "first activation is back from the last rank; take a group of {} to {}",
        group, shape.pp, shape.pp, std::max(shape.pp, shape.microbatches)));
  if (group > shape.microbatches)
    return refused(
        fmt::format("groups of {} micro-batches are larger than the {} of a step; take {} or more "
                    "micro-batches",
                    group, shape.microbatches, group));
  const std::uint32_t rest = shape.microbatches % group;
  if (rest != 0 && rest < shape.pp)
    return refused(fmt::format(
        "{} micro-batches in groups of {} leave a last group of {}, smaller than the {} ranks; "
        "take {} or {} micro-batches",
        shape.microbatches, group, rest, shape.pp, shape.microbatches - rest,
        shape.microbatches - rest + shape.pp));
  return {};
}

Result<> check_options(const ScheduleOptions& options) {
  const Shape& shape = options.shape;
  WSYNC_TRY(check_shape(shape));
  const std::string_view name = order_name(options.order);
  if (options.order != Order::kInterleaved && options.overlap)
    return refused(
        fmt::format("the order {} has no overlapped pairs; take interleaved with overlap, or turn "
                    "overlap off",
                    name));
  if (options.order != Order::kInterleaved && options.extra_warmup.value_or(0) != 0)
    return refused(fmt::format(
        "the order {} has no extra warm-up; take interleaved, or an extra warm-up of 0", name));
  const bool one_chunk =
      options.order == Order::kOneForwardOneBackward || options.order == Order::kZeroBubbleH1;
  if (one_chunk && shape.vpp != 1)
    return refused(fmt::format("the order {} has one chunk on each rank, not {}", name, shape.vpp));
  if (options.extra_warmup.value_or(0) > 1)
    return refused(fmt::format("the extra warm-up is {}; expected 0 or 1", *options.extra_warmup));
  if (shape.vpp == 1 && options.overlap)
    return refused(
        "with one chunk on each rank (vpp 1) overlapped pairs do not tile: the backward of a "
        "micro-batch on one rank would have to begin while the next rank still runs the pair that "
        "it waits for; take vpp 2 or more, or turn overlap off");
  if (shape.vpp == 1 && options.extra_warmup.value_or(0) != 0)
    return refused(
        "an extra warm-up serves overlapped pairs, which need two chunks on each rank or more "
        "(vpp); with vpp 1 take an extra warm-up of 0");
  return check_group(options);
}

std::uint32_t warmup_of(const ScheduleOptions& options, std::uint32_t rank) {
  const Shape& shape = options.shape;
  const std::uint64_t after = shape.pp - 1 - rank;
  std::uint64_t warmup = after;
  if (options.order == Order::kGPipe)
    warmup = shape.cells();
  else if (shape.vpp > 1)
    warmup = 2 * after + std::uint64_t{shape.vpp - 1} * group_of(options) +
             options.extra_warmup.value_or(options.overlap ? 1 : 0);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(warmup, shape.cells()));
}

// Weight gradients fill the slots that would otherwise be bubbles. Rank r delays r of them, so that
// all ranks hold the activations of P micro-batches.
std::vector<Action> zero_bubble(const ScheduleOptions& options, std::uint32_t rank) {
  const Shape& shape = options.shape;
  const std::uint32_t warmup = warmup_of(options, rank);
  std::vector<Action> actions;
  std::uint32_t forward = 0;
  for (; forward < warmup; ++forward)
    actions.push_back({{rank, Computation::kForward, forward}, {}});
  std::uint32_t weight = 0;
  for (std::uint32_t m = 0; m < shape.microbatches; ++m) {
    if (forward < shape.microbatches)
      actions.push_back({{rank, Computation::kForward, forward++}, {}});
    actions.push_back({{rank, Computation::kInputGradient, m}, {}});
    if (m >= rank) actions.push_back({{rank, Computation::kWeightGradient, weight++}, {}});
  }
  while (weight < shape.microbatches)
    actions.push_back({{rank, Computation::kWeightGradient, weight++}, {}});
  return actions;
}

std::vector<Action> one_forward_one_backward(const ScheduleOptions& options, std::uint32_t rank) {
  const Shape& shape = options.shape;
  const std::uint32_t group = group_of(options);
  const std::vector<Cell> forwards = virtual_order(shape, group, rank, Computation::kForward);
  const std::vector<Cell> backwards =
      virtual_order(shape, group, rank,
                    options.delay_wgrad ? Computation::kInputGradient : Computation::kBackward);
  const std::uint32_t warmup = warmup_of(options, rank);
  std::vector<Action> actions;
  for (std::uint32_t k = 0; k < warmup; ++k) actions.push_back({forwards[k], {}});
  for (std::uint32_t k = 0; k < shape.cells(); ++k) {
    const bool has_forward = warmup + k < shape.cells();
    if (has_forward && options.overlap) {
      actions.push_back({forwards[warmup + k], backwards[k]});
    } else {
      if (has_forward) actions.push_back({forwards[warmup + k], {}});
      actions.push_back({backwards[k], {}});
    }
    if (options.delay_wgrad)
      actions.push_back(
          {{backwards[k].stage, Computation::kWeightGradient, backwards[k].microbatch}, {}});
  }
  return actions;
}

}  // namespace

std::string_view order_name(Order order) noexcept {
  switch (order) {
    case Order::kInterleaved:
      return "interleaved";
    case Order::kOneForwardOneBackward:
      return "1f1b";
    case Order::kZeroBubbleH1:
      return "zb-h1";
    case Order::kGPipe:
      return "gpipe";
  }
  return "?";
}

Result<Order> order_of(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Order order : kOrders) {
    if (order_name(order) == name) return order;
    names.push_back(order_name(order));
  }
  return refused(fmt::format("no order '{}'; there are {}", name, fmt::join(names, ", ")));
}

Result<Schedule> make_schedule(const ScheduleOptions& options) {
  WSYNC_TRY(check_options(options));
  Schedule schedule{.shape = options.shape, .ranks = {}};
  for (std::uint32_t rank = 0; rank < options.shape.pp; ++rank)
    schedule.ranks.push_back(options.order == Order::kZeroBubbleH1
                                 ? zero_bubble(options, rank)
                                 : one_forward_one_backward(options, rank));
  return schedule;
}

std::vector<std::uint32_t> warmup_counts(const ScheduleOptions& options) {
  std::vector<std::uint32_t> counts;
  for (std::uint32_t rank = 0; rank < options.shape.pp; ++rank)
    counts.push_back(warmup_of(options, rank));
  return counts;
}

}  // namespace wsync::schedule
