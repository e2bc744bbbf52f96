#include "tune/choice.hpp"

#include <gtest/gtest.h>
#include <numeric>

namespace penstock::tool {
namespace {

Candidate steady(ByteCount request_size, ByteCount in_flight, double rate) {
  return {request_size, in_flight, std::vector<double>(9, rate)};
}

/// Nine rounds about `rate`, up and down by `noise` of it, each candidate in another order.
Candidate noisy(ByteCount request_size, ByteCount in_flight, double rate, double noise, std::size_t turn) {
  const double steps[] = {-1, 0.5, 0, 1, -0.5, 0.75, -0.25, 0.25, -0.75};
  Candidate candidate{request_size, in_flight, {}};
  for (std::size_t i = 0; i < 9; ++i)
    candidate.rates.push_back(rate * (1 + noise * steps[(i * turn + turn) % 9]));
  return candidate;
}

TEST(TuneChoice, TakesTheFastestWhereThatIsPlain) {
  const Candidate candidates[] = {steady(4_MiB, 16_MiB, 2.0), steady(1_MiB, 64_MiB, 3.0),
                                  steady(1_MiB, 32_MiB, 2.5)};

  const Choice choice = choose(candidates);

  EXPECT_EQ(choice.index, 1u);
  EXPECT_EQ(choice.resolution, 0.01);
  EXPECT_EQ(choice.as_good, std::vector<std::size_t>{1});
}

TEST(TuneChoice, TakesTheFewestBytesInFlightAmongEquallyFastSettings) {
  const Candidate candidates[] = {steady(4_MiB, 64_MiB, 3.0), steady(1_MiB, 16_MiB, 2.98),
                                  steady(4_MiB, 16_MiB, 2.98), steady(4_MiB, 8_MiB, 2.7)};

  const Choice choice = choose(candidates);

  EXPECT_EQ(choice.index, 2u) << "of two with as much in flight, the longer requests";
  EXPECT_EQ(choice.as_good, (std::vector<std::size_t>{0, 1, 2}));
}

TEST(TuneChoice, DoesNotChooseAnExtremeSettingBecauseOfNoise) {
  const Candidate candidates[] = {noisy(8_MiB, 64_MiB, 3.05, 0.2, 1), noisy(4_MiB, 16_MiB, 3.0, 0.2, 2),
                                  noisy(1_MiB, 64_MiB, 2.95, 0.2, 4)};

  const Choice choice = choose(candidates);

  EXPECT_EQ(choice.index, 1u);
  EXPECT_GT(choice.resolution, 0.05);
}

TEST(TuneChoice, IgnoresADriftThatAllCandidatesShare) {
  Candidate fast{4_MiB, 32_MiB, {}}, slow{4_MiB, 16_MiB, {}};
  for (int round = 0; round < 9; ++round) {
    fast.rates.push_back(3.0 + round);
    slow.rates.push_back((3.0 + round) * 0.95);
  }
  const Candidate candidates[] = {slow, fast};

  EXPECT_EQ(choose(candidates).index, 1u);
}

TEST(TuneChoice, ComparesRatesOfTheSameRound) {
  const Candidate candidates[] = {{4_MiB, 16_MiB, {2, 20, 200}}, {1_MiB, 16_MiB, {1, 30, 100}}};

  EXPECT_EQ(median_relative_rates(candidates), (std::vector<double>{1.0, 0.5}));
}

TEST(TuneChoice, HasNoChoiceOfOne) {
  const Candidate candidates[] = {steady(4_MiB, 16_MiB, 2.0)};

  EXPECT_EQ(choose(candidates).index, 0u);
}

TEST(PathWeights, FollowTheRatesAndAddUpToOne) {
  const double rates[] = {3.0, 1.0};
  const std::string devices[] = {"nvme0n1", "nvme1n1"};

  EXPECT_EQ(path_weights(rates, devices), (std::vector<double>{0.75, 0.25}));
}

TEST(PathWeights, AreEqualOnOneDeviceDespiteNoise) {
  const double rates[] = {1.5, 0.5, 2.0};
  const std::string devices[] = {"nvme0n1", "nvme0n1", "nvme1n1"};

  EXPECT_EQ(path_weights(rates, devices), (std::vector<double>{0.25, 0.25, 0.5}));
}

TEST(PathWeights, AreNeverZero) {
  const double rates[] = {1000.0, 0.001};
  const std::string devices[] = {"nvme0n1", "sda"};

  EXPECT_GT(path_weights(rates, devices)[1], 0);
}

}  // namespace
}  // namespace penstock::tool
