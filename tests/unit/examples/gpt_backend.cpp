#include "gpt_backend.hpp"

#include "gpt_host_backend.hpp"

#include <bit>
#include <cmath>
#include <cstring>

namespace gpt::test {

using penstock::DType;

namespace {
template <class T>
std::vector<T> elements(const std::vector<std::byte>& bytes) {
  std::vector<T> result(bytes.size() / sizeof(T));
  std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}
}  // namespace

void Backend::write(const Values& values, DeviceTensor to) {
  if (to.dtype == DType::fp32) return write(std::as_bytes(std::span(values)), to.bytes);
  std::vector<std::uint16_t> rounded;
  for (const float x : values) {
    rounded.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(nearest_bf16(x)) >> 16));
  }
  write(std::as_bytes(std::span(rounded)), to.bytes);
}

Values Backend::read(DeviceTensor from) {
  if (from.dtype == DType::fp32) return elements<float>(read(from.bytes));
  Values values;
  for (const std::uint16_t x : elements<std::uint16_t>(read(from.bytes))) {
    values.push_back(std::bit_cast<float>(std::uint32_t{x} << 16));
  }
  return values;
}

DeviceTensor Backend::tensor(std::size_t count, DType dtype) {
  const auto bytes = bytes_of(penstock::ElementCount(count), dtype).value();
  buffers_.push_back(allocator().allocate(bytes).value());
  return {buffers_.back().bytes.subspan({}, bytes), dtype};
}

DeviceTensor Backend::tensor(const Values& values, DType dtype) {
  const DeviceTensor result = tensor(values.size(), dtype);
  write(values, result);
  return result;
}

void BackendTest::SetUp() {
  std::string reason;
  backend_ = GetParam().make(reason);
  if (!backend_) GTEST_SKIP() << reason;
  reference_ = std::make_unique<HostBackend<EagerQueue>>();
}

DeviceSpan BackendTest::bytes(const std::vector<std::uint8_t>& values) {
  buffers_.push_back(backend_->allocator().allocate(penstock::ByteCount(values.size())).value());
  const DeviceSpan span = buffers_.back().bytes.subspan({}, penstock::ByteCount(values.size()));
  backend_->write(std::as_bytes(std::span(values)), span);
  return span;
}

Values BackendTest::read(DeviceTensor from) {
  EXPECT_TRUE(ops().status()) << ops().status().error().message();
  return backend_->read(from);
}

Values BackendTest::random(std::size_t count) {
  Values values(count);
  for (float& x : values) x = choices_.symmetric();
  return values;
}

Values BackendTest::random_bf16(std::size_t count, float factor) {
  Values values = random(count);
  for (float& x : values) x = nearest_bf16(factor * x);
  return values;
}

std::vector<std::uint8_t> BackendTest::random_bytes(std::size_t count, std::uint32_t below) {
  std::vector<std::uint8_t> values(count);
  for (std::uint8_t& x : values) x = static_cast<std::uint8_t>(choices_.below(below));
  return values;
}

float nearest_bf16(float x) {
  if (x == 0) return x;
  int exponent = 0;
  std::frexp(x, &exponent);
  const double spacing = std::ldexp(1.0, exponent - 8);  // 8 significant bits
  return static_cast<float>(std::nearbyint(x / spacing) * spacing);
}

void expect_near(const Values& got, const Values& wanted, double tolerance) {
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], wanted[i], tolerance * (1 + std::abs(wanted[i]))) << "element " << i;
  }
}

void expect_gradients(const std::function<Values(const std::vector<Values>&)>& forward,
                      std::vector<Values> inputs, const Values& dy, const std::vector<Values>& gradients,
                      double tolerance) {
  constexpr float h = 1e-2f;
  const auto loss = [&] {
    const Values y = forward(inputs);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += double{y[i]} * dy[i];
    return sum;
  };
  for (std::size_t input = 0; input < gradients.size(); ++input) {
    ASSERT_EQ(gradients[input].size(), inputs[input].size()) << "input " << input;
    for (std::size_t i = 0; i < inputs[input].size(); ++i) {
      float& x = inputs[input][i];
      const float middle = x;
      const float above = middle + h, below = middle - h;
      x = above;
      const double loss_above = loss();
      x = below;
      const double loss_below = loss();
      x = middle;
      const double difference = (loss_above - loss_below) / (double{above} - double{below});
      ASSERT_NEAR(gradients[input][i], difference, tolerance * (1 + std::abs(difference)))
          << "input " << input << ", element " << i;
    }
  }
}

}  // namespace gpt::test
