#include "zero/engine/gradient_hops.hpp"
#include "swap/runtime_internals.hpp"

#include <penstock/zero/comm/in_process_group.hpp>
#include <penstock/zero/rank.hpp>

#include <gtest/gtest.h>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace penstock::zero {
namespace {

constexpr ElementCount shard(128);
constexpr ByteCount flat_bytes = size_of(DType::bf16) * shard.value() * 2;

ModelLayout one_unit() {
  return {.units = {{.name = "unit", .parameters = {{"weight", shard * 2, 0}}}}};
}

/// The other rank of the group. When the first one waits, it takes part in the reduce-scatter.
class Peer final : public swap::IdleHandler {
 public:
  explicit Peer(InProcessGroup& group)
      : communicator_(group.join(1, *accelerator_.device, *accelerator_.compute).value()),
        flat_(accelerator_.device->allocate(flat_bytes).value()) {
    accelerator_.device->fill_zero(stream_->handle(), flat_).value();
  }

  void start_reduce_scatter() {
    started_ = true;
    communicator_
        ->start_reduce_scatter(*stream_, std::array{DeviceTensor{flat_, DType::bf16}}, Reduction::exact,
                               {.subject = CollectiveSignature::Subject::gradients, .step = 1})
        .value();
  }
  void idle() override {
    if (started_ && communicator_->poll().value()) started_ = false;
  }
  /// The result of a collective that this rank starts.
  Result<void> exchange() {
    return communicator_->start_exchange(ConstHostSpan(std::span(mine_)), HostSpan(std::span(all_)), {});
  }

 private:
  Accelerator accelerator_ = make_host_accelerator(64_KiB);
  std::unique_ptr<tiers::Stream> stream_ = accelerator_.device->create_stream().value();
  std::unique_ptr<Communicator> communicator_;
  DeviceSpan flat_;
  bool started_ = false;
  std::array<double, 1> mine_{};
  std::array<double, 2> all_{};
};

/// The rank under test: one flat of two shards, gradients in bf16, an accumulator of `accumulator` bytes in fp32.
struct GradientMove : testing::Test {
  void open(ByteCount accumulator) {
    config.dtype = DType::bf16;
    config.grad_accum_dtype = DType::fp32;
    context.emplace(*runtime, *accelerator.device, *accelerator.compute, *communicator, workers, config,
                    model, forever);
    context->open({.flats = 64_KiB}).value();
    flat = &context->flats[0];
    flat->grad.full = {context->flats_region.memory().subspan({}, flat_bytes), DType::bf16};
    flat->gradient = add("gradient", accumulator);
    flat->incoming_gradient = add("incoming", size_of(DType::bf16) * shard.value());
  }
  void TearDown() override {
    communicator->retire(*context->communication);
    context.reset();
  }

  tiers::TensorId add(const char* name, ByteCount size) {
    return runtime
        ->add({.name = name, .key = {.unit = unit_number++}, .size = size, .transient = true}, false)
        .value();
  }
  /// Reduces a gradient of ones as that of the only micro-batch. Returns when the move is done.
  void reduce() {
    auto stream = accelerator.device->create_stream().value();
    std::array<std::uint16_t, shard.value() * 2> ones{};
    ones.fill(0x3f80);  // 1 in bf16
    accelerator.device
        ->copy_to_device(stream->handle(), ConstHostSpan(std::span(ones)), flat->grad.full.bytes)
        .value();
    stream->record(*flat->grad.written_event).value();
    flat->grad.reduction = MoveProgress::begun();
    const std::array bucket{WrittenGradient{.flat = flat, .how = {.first = true, .last = true}}};
    swap::Move move = std::move(make_gradient_moves(
        *context, bucket, context->signature(CollectiveSignature::Subject::gradients, *flat))[0]);
    move.on_event = [this](swap::HopState state, const Result<void>& result) {
      flat->grad.reduction.report(state, result);
    };
    swap::RuntimeInternals(*runtime).start(std::move(move));
    peer.start_reduce_scatter();
    swap::RuntimeInternals(*runtime).wait_ignoring_stores([&] { return flat->grad.reduction.done; });
  }

  std::shared_ptr<InProcessGroup> group = InProcessGroup::create(2).value();
  Peer peer{*group};
  Accelerator accelerator = make_host_accelerator(128_KiB);
  std::unique_ptr<swap::Runtime> runtime =
      swap::Runtime::create({.host_budget = 2_MiB, .idle_handler = &peer}).value();
  std::unique_ptr<Communicator> communicator =
      group->join(0, *accelerator.device, *accelerator.compute).value();
  parallel::Workers workers = parallel::Workers::create({}).value();
  Config config;
  ModelLayout model = one_unit();
  std::optional<EngineContext> context;
  FlatState* flat = nullptr;
  std::uint32_t unit_number = 0;
};

TEST_F(GradientMove, AccumulatesTheMeanAndItsSquares) {
  open(size_of(DType::fp32) * shard.value());

  reduce();

  EXPECT_FALSE(flat->grad.reduction.error);
  EXPECT_EQ(flat->grad.square_partials, std::vector<double>{shard.value() * 0.25});  // the peer has zeros
  EXPECT_TRUE(peer.exchange());
}

TEST_F(GradientMove, AbortsTheGroupWhenTheAccumulationFails) {
  open(size_of(DType::fp32) * shard.value() / 2);

  reduce();

  ASSERT_TRUE(flat->grad.reduction.error);
  EXPECT_EQ(flat->grad.reduction.error->code(), ErrorCode::invalid_argument);
  EXPECT_TRUE(context->collective_order.failure());
  const auto at_peer = peer.exchange();
  ASSERT_FALSE(at_peer);
  EXPECT_EQ(at_peer.error().code(), ErrorCode::peer_failed);
  EXPECT_NE(at_peer.error().message().find("accumulate_gradient"), std::string::npos)
      << at_peer.error().message();
}

}  // namespace
}  // namespace penstock::zero
