#include "zero/layout/step_trace.hpp"

#include "swap/trace_rules.hpp"
#include "zero/layout/device_plan.hpp"
#include "zero/layout/engine_tensors.hpp"
#include "zero/layout/flat_residency.hpp"
#include "zero/layout/padded.hpp"
#include "zero/layout/plan_fingerprint.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace penstock::zero {

namespace {

using swap::Access;

/// Numbers tensors by their first use, as a runtime records them.
class Writer {
 public:
  explicit Writer(std::string label) { trace_.label = std::move(label); }

  /// `number`: the tensor's, once it has one.
  void use(std::optional<std::uint32_t>& number, const tiers::TensorDescription& tensor, bool on_disk,
           Access access) {
    if (!number) {
      number = static_cast<std::uint32_t>(trace_.tensors.size());
      trace_.tensors.push_back({.name = swap::name_in_trace(tensor),
                                .size = tensor.size,
                                .purpose = tensor.purpose,
                                .on_disk = on_disk,
                                .write_behind = tensor.write_behind,
                                .retain = tensor.retain,
                                .home_in_memory = tensor.home_in_memory,
                                .transient = tensor.transient});
    }
    trace_.uses.push_back({*number, access});
  }
  [[nodiscard]] swap::AccessTrace end() && { return std::move(trace_); }

 private:
  swap::AccessTrace trace_;
};

/// A rank's step, without bytes.
class Step final : private FlatResidency::Effects {
 public:
  Step(const Config& config, const ModelLayout& model, const MemoryPlan& plan, const StepShape& shape)
      : config_(config),
        plan_(plan),
        micro_batches_(shape.micro_batches),
        acquires_(shape.acquires),
        all_tiles_(shape.all_tiles),
        checkpoints_leaving_(shape.checkpoints ? plan.checkpoints.count - plan.checkpoints.device_slots : 0),
        checkpoint_size_(model.checkpoints.size),
        shards_(model, plan.ranks),
        flats_(shards_.flats().size()),
        device_(tiers::Tier::device, plan.device_flats(), ledger_),
        leases_(tiers::Tier::host, plan.host_leases, ledger_, extent_alignment,
                tiers::MemoryBudget::Ranges::counted),
        in_place_(in_place_of(plan, config)),
        residency_(shards_, config.dtype, in_place_, limits_of(plan, config, shards_),
                   {.gathered = plan.shares_memory ? leases_ : device_, .gradients = device_}, order()) {}

  /// Writes its uses to `writer`.
  Result<void> run(Writer& writer) {
    writer_ = &writer;
    for (Flat& flat : flats_) flat = {};
    checkpoints_.assign(plan_.checkpoints.count, {});
    PENSTOCK_TRY(residency_.begin_step(order(), *this));
    for (std::uint32_t i = 0; i < micro_batches_; ++i) PENSTOCK_TRY(micro_batch());
    PENSTOCK_TRY(residency_.finish_gradients(*this));
    PENSTOCK_TRY(residency_.drop_for_update("derive_trace", *this));
    update();
    residency_.end_step();
    return ok();
  }

 private:
  struct Flat {
    std::optional<std::uint32_t> shard, gradient;  // their numbers in the trace
    std::uint32_t closed = 0;                      // micro-batches whose gradient is complete
    bool in_place = false;                         // the open gradient is the accumulated one
  };

  [[nodiscard]] std::vector<std::uint32_t> order() const {
    return unit_order(shards_.unit_count(), micro_batches_);
  }

  Result<void> micro_batch() {
    const std::uint32_t units = shards_.unit_count();
    for (std::uint32_t i = 0; acquires_.empty() && i < 2 * units; ++i)
      PENSTOCK_TRY(visit(unit_at(i, units), /*backward=*/i >= units));
    for (auto use = acquires_.begin(); use != acquires_.end(); ++use)
      PENSTOCK_TRY(visit(*use, /*backward=*/std::find(use + 1, acquires_.end(), *use) == acquires_.end()));
    return ok();
  }

  Result<void> visit(std::uint32_t unit, bool backward) {
    PENSTOCK_TRY(residency_.acquire(unit, *this));
    residency_.lease(unit);
    const bool trains = backward && !shards_.trained_by(unit).empty();
    if (trains) PENSTOCK_TRY(residency_.open_gradients(unit, *this));
    use_checkpoint(unit, backward ? Access::read : Access::overwrite);
    residency_.release(unit);
    if (!trains) return ok();
    for (const std::uint32_t flat : shards_.trained_by(unit))
      if (residency_.close_gradient(flat)) ++flats_[flat].closed;
    return residency_.reduce_buckets(*this);
  }

  /// In the order of a forward and a backward the first checkpoints are needed last: they make room.
  void use_checkpoint(std::uint32_t unit, Access access) {
    const std::uint32_t before = shards_.unit_count() > plan_.checkpoints.count ? 1 : 0;
    if (unit < before || unit - before >= checkpoints_leaving_) return;
    const std::uint32_t checkpoint = unit - before;
    const bool on_disk = checkpoint < plan_.checkpoints.count - plan_.checkpoints.in_host;
    writer_->use(checkpoints_[checkpoint], checkpoint_tensor(checkpoint, checkpoint_size_, on_disk), on_disk,
                 access);
  }

  void update() {
    std::uint64_t tile_number = 0;
    for (std::uint32_t f = 0; f < flats_.size(); ++f) {
      const FlatLayout& flat = shards_.flats()[f];
      if (flat.frozen) continue;
      use_gradient(f, Access::read);
      const bool reads = cpu_adam::shares_parameter(tile_layout(config_, FlatLayout{}).format);
      use_shard(f, reads ? Access::modify : Access::overwrite);
      std::uint32_t number = 0;
      for (const TileRange& range : cut_into_tiles(flat, plan_.tile_elements)) {
        const TilePlace place = place_of_tile(plan_, tile_number++);
        const bool on_disk = is_on_disk(place);
        std::optional<std::uint32_t> of_tile;  // it is used once
        if (on_disk || all_tiles_)
          writer_->use(of_tile, tile_tensor(config_, flat, range, number, place), on_disk, Access::modify);
        ++number;
      }
    }
  }

  void use_shard(std::uint32_t f, Access access) {
    if (plan_.shards_on_device) return;
    writer_->use(flats_[f].shard, shard_tensor(config_, shards_.flats()[f], plan_.shard_at_home(f)),
                 plan_.shard_on_disk(f), access);
  }

  void use_gradient(std::uint32_t f, Access access) {
    if (plan_.gradients_on_device) return;
    writer_->use(flats_[f].gradient, gradient_tensor(config_, shards_.flats()[f]), plan_.gradients_on_disk,
                 access);
  }

  Result<void> gather(std::uint32_t flat) override {
    use_shard(flat, Access::read);
    return ok();
  }
  Result<void> drop(std::uint32_t) override { return ok(); }
  Result<void> open_gradient(std::uint32_t flat) override {
    flats_[flat].in_place = !residency_.gradient(flat).held();
    if (flats_[flat].in_place) use_gradient(flat, Access::overwrite);
    return ok();
  }
  Result<void> reduce(std::span<const std::uint32_t> flats) override {
    for (const std::uint32_t flat : flats) {
      if (!flats_[flat].in_place)
        use_gradient(flat, flats_[flat].closed == 1 ? Access::overwrite : Access::modify);
    }
    return ok();
  }
  Result<void> finish_gradient(std::uint32_t) override { return ok(); }

  const Config& config_;
  const MemoryPlan& plan_;
  const std::uint32_t micro_batches_;
  const std::vector<std::uint32_t>& acquires_;
  const bool all_tiles_;
  const std::uint32_t checkpoints_leaving_;  // the device
  const ByteCount checkpoint_size_;
  std::vector<std::optional<std::uint32_t>> checkpoints_;  // their numbers in the trace
  const ShardLayout shards_;
  std::vector<Flat> flats_;
  tiers::Ledger ledger_;
  tiers::MemoryBudget device_, leases_;
  const InPlace in_place_;
  FlatResidency residency_;
  Writer* writer_ = nullptr;
};

Result<void> check_acquires(const StepShape& shape, const ModelLayout& model) {
  const auto refused = [&] { return Error::invalid_argument("derive_trace").object("acquires"); };
  if (shape.acquires.empty()) return ok();
  if (shape.checkpoints) return refused().reason("checkpoints are of the layout's order");
  std::vector<std::uint32_t> count(model.units.size());
  for (const std::uint32_t unit : shape.acquires) {
    if (unit >= count.size())
      return refused().wanted("units below " + std::to_string(count.size())).got(unit);
    ++count[unit];
  }
  const ShardLayout shards(model, 1);
  for (std::uint32_t unit = 0; unit < count.size(); ++unit) {
    if (count[unit] == 0 && !shards.trained_by(unit).empty())
      return refused().reason("unit \"" + model.units[unit].name + "\" is trained and not among them");
  }
  return ok();
}

}  // namespace

Result<swap::AccessTrace> derive_trace(const Config& config, const ModelLayout& model, const MemoryPlan& plan,
                                       const StepShape& shape) {
  constexpr const char* operation = "derive_trace";
  if (plan.fingerprint == 0 || plan.fingerprint != plan_fingerprint(config, model, plan.ranks)) {
    return Error::invalid_argument(operation)
        .object("plan")
        .reason("it is of another configuration, layout or number of ranks")
        .advice("pass what plan_memory() returns for them");
  }
  if (shape.rank >= plan.ranks)
    return Error::invalid_argument(operation)
        .object("rank")
        .wanted("below " + std::to_string(plan.ranks))
        .got(shape.rank);
  if (shape.micro_batches == 0)
    return Error::invalid_argument(operation).object("micro_batches").wanted("1 or more").got(0u);
  if (shape.checkpoints && plan.checkpoints.count > model.units.size())
    return Error::invalid_argument(operation)
        .object("checkpoints")
        .wanted("at most " + std::to_string(model.units.size()) + ", the input of each unit")
        .got(plan.checkpoints.count);
  PENSTOCK_TRY(check_acquires(shape, model));
  Step step(config, model, plan, shape);
  Writer first("first"), next("train");
  PENSTOCK_TRY(step.run(first));                               // what stays gathered is there from then on
  if (!shape.acquires.empty()) PENSTOCK_TRY(step.run(first));  // an order is followed once two steps had it
  PENSTOCK_TRY(step.run(next));
  return std::move(next).end();
}

}  // namespace penstock::zero
