#include "adam_reference.hpp"
#include "kit/golden.hpp"
#include "tile_fixture.hpp"

#include <gtest/gtest.h>
#include <json/json.h>
#include <bit>

namespace penstock::test {

using namespace cpu_adam;
namespace {

DType dtype_of(const std::string& safetensors_name) {
  return safetensors_name == "BF16" ? DType::bf16 : safetensors_name == "F16" ? DType::fp16 : DType::fp32;
}

std::vector<double> values_of(const Safetensors& file, const std::string& name) {
  const Safetensors::Array& array = file.at(name);
  if (array.dtype == "F64") return file.elements<double>(name);
  const DType dtype = dtype_of(array.dtype);
  const std::size_t size = size_of(dtype).value();
  std::vector<double> values;
  for (std::size_t at = 0; at < array.bytes.size(); at += size)
    values.push_back(get(dtype, &array.bytes[at]));
  return values;
}

float hyperparameter(const Json::Value& test_case, const char* name) {
  const auto bits =
      static_cast<std::uint32_t>(std::stoul(test_case["hyper_f32_hex"][name].asString(), nullptr, 16));
  return std::bit_cast<float>(bits);
}

AdamConfig config_of(const Json::Value& test_case) {
  return {.learning_rate = hyperparameter(test_case, "lr"),
          .beta1 = hyperparameter(test_case, "beta1"),
          .beta2 = hyperparameter(test_case, "beta2"),
          .epsilon = hyperparameter(test_case, "eps"),
          .weight_decay = hyperparameter(test_case, "weight_decay"),
          .decay_mode = test_case["adam_w_mode"].asBool() ? AdamDecay::decoupled : AdamDecay::l2,
          .bias_correction = test_case["bias_correction"].asBool()};
}

/// One of the trajectories, run by the library and, for the scales of its errors, by the reference.
class Trajectory {
 public:
  Trajectory(const Json::Value& test_case, const Safetensors& file)
      : case_(test_case),
        file_(file),
        name_(test_case["name"].asString()),
        count_(test_case["n"].asUInt64()),
        dtype_(test_case["param_dtype"].asString() == "bf16"   ? DType::bf16
               : test_case["param_dtype"].asString() == "fp16" ? DType::fp16
                                                               : DType::fp32),
        memory_(count_, dtype_, dtype_),
        references_(count_) {}

  void run() {
    start();
    AdamConfig config = config_of(case_);
    const std::uint64_t first_step = case_["first_step"].asUInt64();
    for (std::uint64_t step = 0; step < case_["steps"].asUInt64(); ++step) {
      if (case_.isMember("lr_per_step")) {
        config.learning_rate = case_["lr_per_step"][static_cast<Json::ArrayIndex>(step)].asFloat();
      }
      memory_.set_gradient(gradient(step));
      ASSERT_TRUE(adam_step(config, first_step + step, 1.0f, memory_.tile()).has_value());
      for (std::size_t i = 0; i < count_; ++i) {
        references_[i].step(config, first_step + step, memory_.gradient(i));
        // These cases have no fp32 master: each step starts from the 16-bit parameter.
        if (dtype_ != DType::fp32) {
          memory_.set_master(i, memory_.parameter(i));
          references_[i].p = rounded_to(dtype_, references_[i].p);
        }
      }
    }
  }

  void expect_no_worse_than_deepspeed() {
    const int fraction_bits = dtype_ == DType::fp32 ? 23 : dtype_ == DType::bf16 ? 7 : 10;
    expect(
        "p", fraction_bits, [&](std::size_t i) { return memory_.parameter(i); },
        [&](std::size_t i) { return references_[i].p_scale; });
    expect(
        "m", 23, [&](std::size_t i) { return memory_.m(i); },
        [&](std::size_t i) { return references_[i].m_scale; });
    expect(
        "v", 23, [&](std::size_t i) { return memory_.v(i); },
        [&](std::size_t i) { return references_[i].v_scale; });
  }

 private:
  void start() {
    const auto p = values_of(file_, name_ + "/p0");
    const bool has_moments = file_.contains(name_ + "/m0");
    const auto m = has_moments ? values_of(file_, name_ + "/m0") : std::vector<double>(count_);
    const auto v = has_moments ? values_of(file_, name_ + "/v0") : std::vector<double>(count_);
    TileValues values;
    for (std::size_t i = 0; i < count_; ++i) {
      values.master.push_back(static_cast<float>(p[i]));
      values.m.push_back(static_cast<float>(m[i]));
      values.v.push_back(static_cast<float>(v[i]));
      references_[i] = {.p = p[i], .m = m[i], .v = v[i]};
    }
    values.gradient.resize(count_);
    memory_.set(values);
    gradients_ = values_of(file_, name_ + "/g");
  }

  std::vector<float> gradient(std::uint64_t step) const {
    const bool rotates = case_["grad_rule"].asString() == "rotate";
    std::vector<float> g;
    for (std::size_t i = 0; i < count_; ++i) {
      g.push_back(static_cast<float>(gradients_[rotates ? (i + 37 * step) % count_ : step * count_ + i]));
    }
    return g;
  }

  void expect(const char* array, int fraction_bits, auto&& got, auto&& scale) {
    // The figures are printed with three decimals.
    const double limit = case_["deepspeed_vs_r32"][array]["max_ulp_scaled"].asDouble() + 0.0005 + 2.0;
    const auto wanted = values_of(file_, name_ + "/r32_" + array);
    double worst = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      const float value = got(i), rounded = static_cast<float>(wanted[i]);
      ASSERT_EQ(std::isnan(value), std::isnan(rounded)) << name_ << "/" << array << "[" << i << "]";
      ASSERT_EQ(std::isinf(value), std::isinf(rounded)) << name_ << "/" << array << "[" << i << "]";
      if (!std::isfinite(rounded)) continue;
      worst = std::max(worst, std::ldexp(ulps(value, wanted[i], scale(i)), fraction_bits - 23));
    }
    EXPECT_LE(worst, limit) << name_ << "/" << array;
    // --gtest_output=json prints these figures for docs/optimizer.md.
    testing::Test::RecordProperty(name_ + "." + array,
                                  std::to_string(worst) + " " + std::to_string(limit - 2.0005));
  }

  const Json::Value& case_;
  const Safetensors& file_;
  std::string name_;
  std::size_t count_;
  DType dtype_;
  TileMemory memory_;
  std::vector<AdamReference> references_;
  std::vector<double> gradients_;
};

TEST(AdamGolden, IsNoFurtherFromTheFloat64ReferenceThanDeepSpeedsOwnKernelPlusTwoUlps) {
  const Json::Value cases = golden_json("adam.json")["cases"];
  const Safetensors file(golden_directory() / "adam.safetensors");
  ASSERT_EQ(cases.size(), 46u);
  for (const Json::Value& test_case : cases) {
    Trajectory trajectory(test_case, file);
    trajectory.run();
    trajectory.expect_no_worse_than_deepspeed();
  }
}

}  // namespace
}  // namespace penstock::test
