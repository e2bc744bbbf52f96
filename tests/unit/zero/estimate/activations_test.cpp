#include "zero/estimate/activations.hpp"

#include "kit/golden.hpp"

#include <gtest/gtest.h>
#include <json/json.h>
#include <string>

namespace penstock::zero::estimate {
namespace {

ByteCount bytes_of(const Json::Value& one) {
  const auto number = [&](const char* key) { return one[key].asUInt64(); };
  const ModelShape shape{
      .family = one["family"].asString() == "gpt2" ? ModelShape::Family::gpt2 : ModelShape::Family::llama,
      .hidden = number("hidden"),
      .intermediate = number("intermediate"),
      .heads = number("heads"),
      .kv_heads = number("kv_heads"),
      .experts = number("experts")};
  const DType dtype = one["dtype"].asString() == "fp32" ? DType::fp32 : DType::bf16;
  return activations_of(shape, dtype, number("tokens")).block;
}

TEST(Activations, OfABlockAreThoseThatPyTorchKeeps) {
  for (const Json::Value& one : test::golden_json("activations.json")["cases"]) {
    const auto kept = static_cast<double>(one["block_bytes"].asUInt64());
    const auto predicted = static_cast<double>(bytes_of(one).value());
    // What a router keeps depends on which experts its tokens have.
    EXPECT_NEAR(predicted / kept, 1, one["experts"].asUInt64() > 0 ? 1e-3 : 0) << one.toStyledString();
  }
}

TEST(Activations, OfALlamaBlockByHand) {
  const ModelShape& shape = *find_preset("llama-3-8b");
  const ActivationSizes sizes = activations_of(shape, DType::bf16, 1);
  // Two norms of 8 h + 4, attention of 2 (2 h + 2 h / 4) + 4 * 32, MLP of 8 * 14336; h = 4096.
  EXPECT_EQ(sizes.block, ByteCount(2 * (8 * 4096 + 4) + 2 * (2 * 4096 + 2 * 1024) + 128 + 8 * 14336));
  EXPECT_EQ(sizes.checkpoint, ByteCount(2 * 4096));
  EXPECT_EQ(sizes.head, ByteCount(8 * 4096 + 4 + 10 * 128256));
  EXPECT_EQ(activations_of(shape, DType::bf16, 8192).block, sizes.block * 8192);
}

constexpr ActivationSizes sizes{.block = 10_MiB, .checkpoint = 1_MiB, .head = 4_MiB};

TEST(Recomputation, KeepsWhatFitsAndNoMore) {
  const auto plan = [](ByteCount room) { return plan_recomputation(sizes, 8, room).value(); };
  EXPECT_EQ(plan(1_GiB).kept, 8u);
  EXPECT_EQ(plan(1_GiB).peak, 84_MiB);
  EXPECT_EQ(plan(1_GiB).repeated(), 0);
  EXPECT_EQ(plan(84_MiB).kept, 8u);
  EXPECT_EQ(plan(84_MiB - 1_B).kept, 7u);
  EXPECT_EQ(plan(48_MiB).kept, 4u);  // 40 + 4 + 4
  EXPECT_EQ(plan(48_MiB).peak, 48_MiB);
  EXPECT_EQ(plan(48_MiB).repeated(), 0.5);
  // One block's activations are needed to repeat its forward: those of the first to be kept cost the head more.
  EXPECT_EQ(plan(18_MiB).kept, 0u);
  EXPECT_EQ(plan(18_MiB).peak, 18_MiB);
  EXPECT_EQ(plan(21_MiB).kept, 1u);
}

TEST(Recomputation, NeverTakesMoreThanItsRoom) {
  for (std::uint64_t blocks = 0; blocks < 12; ++blocks) {
    for (std::uint64_t mib = 0; mib < 140; ++mib) {
      const ByteCount room = 1_MiB * mib;
      const auto plan = plan_recomputation(sizes, blocks, room);
      if (!plan) {
        EXPECT_LT(room, std::max(1_MiB * blocks + 4_MiB, 1_MiB * blocks + (blocks > 0 ? 10_MiB : 0_B)));
        continue;
      }
      EXPECT_LE(plan->peak, room);
      EXPECT_LE(plan->kept, blocks);
      if (plan->kept < blocks) {
        EXPECT_GT(10_MiB * (plan->kept + 1) + 1_MiB * (blocks - plan->kept - 1) + 4_MiB, room);
      }
    }
  }
}

TEST(Recomputation, SaysHowMuchIsMissing) {
  const auto refused = plan_recomputation(sizes, 8, 20_MiB, 3_MiB);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::budget_too_small);
  EXPECT_NE(refused.error().message().find("train fewer tokens"), std::string::npos);
  const auto without_room = plan_recomputation(sizes, 8, 20_MiB, 30_MiB);
  ASSERT_FALSE(without_room);
  EXPECT_NE(without_room.error().message().find("penstock.device_budget"), std::string::npos);
  EXPECT_EQ(plan_recomputation(sizes, 8, 20_MiB, 2_MiB)->room, 18_MiB);
  EXPECT_NE(refused.error().message().find("got 17.0 MiB of 20.0 MiB, beside 3.0 MiB"), std::string::npos)
      << refused.error().message();
}

}  // namespace
}  // namespace penstock::zero::estimate
