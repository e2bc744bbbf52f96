#pragma once

#include "gpt/device_memory.hpp"
#include "gpt/model_config.hpp"
#include "gpt/ops.hpp"
#include "kit/seeded_random.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

namespace gpt::test {

using Values = std::vector<float>;

/// One implementation of Ops with a stream to run on and a way to its memory.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  virtual Ops& ops() = 0;
  virtual StreamHandle stream() = 0;
  virtual DeviceAllocator& allocator() = 0;
  /// Waits for the stream, then copies.
  virtual void write(std::span<const std::byte> bytes, DeviceSpan to) = 0;
  virtual std::vector<std::byte> read(DeviceSpan from) = 0;

  // The same in elements; bf16 is rounded to nearest even and widened.
  void write(const Values& values, DeviceTensor to);
  Values read(DeviceTensor from);

  /// New memory that lives as long as the backend.
  DeviceTensor tensor(std::size_t count, penstock::DType dtype = penstock::DType::fp32);
  DeviceTensor tensor(const Values& values, penstock::DType dtype = penstock::DType::fp32);

 private:
  std::vector<DeviceBuffer> buffers_;
};

/// How to make a backend: null, with the reason, where this machine has none.
struct BackendKind {
  const char* name;
  std::unique_ptr<Backend> (*make)(std::string& reason);
  /// Whether a product may be rounded to bf16 before something is added to it, or it is multiplied, and rounded again.
  bool rounds_twice = false;
};
inline std::ostream& operator<<(std::ostream& out, const BackendKind& kind) {
  return out << kind.name;
}

/// Scratch of so many fp32 elements is enough for every test.
constexpr std::uint64_t scratch_elements = 1 << 19;

/// The fixture of every test that runs on all backends.
class BackendTest : public ::testing::TestWithParam<BackendKind> {
 protected:
  void SetUp() override;

  Ops& ops() { return backend_->ops(); }
  StreamHandle stream() { return backend_->stream(); }
  Backend& backend() { return *backend_; }
  /// One in fp32, of which differences can be taken.
  Backend& reference() { return *reference_; }

  /// New device memory that lives as long as the test.
  DeviceTensor tensor(std::size_t count, penstock::DType dtype = penstock::DType::fp32) {
    return backend().tensor(count, dtype);
  }
  DeviceTensor tensor(const Values& values, penstock::DType dtype = penstock::DType::fp32) {
    return backend().tensor(values, dtype);
  }
  DeviceTensor operand(std::size_t count) { return tensor(count, ops().operand_dtype()); }
  DeviceTensor operand(const Values& values) { return tensor(values, ops().operand_dtype()); }
  /// How far a result may be from the reference: by the rounding of its elements, and a little.
  static double tolerance(DeviceTensor result) { return result.dtype == penstock::DType::bf16 ? 4e-3 : 1e-5; }
  /// The same for a product with which more is computed before it is stored.
  static double tolerance_of_product(DeviceTensor result) {
    return tolerance(result) * (result.dtype == penstock::DType::bf16 && GetParam().rounds_twice ? 2 : 1);
  }
  /// Where operands are rounded between inputs and result.
  double tolerance_of_several() { return ops().operand_dtype() == penstock::DType::bf16 ? 1e-2 : 1e-5; }
  DeviceSpan bytes(const std::vector<std::uint8_t>& values);
  Values read(DeviceTensor from);

  /// `count` numbers in [-1, 1).
  Values random(std::size_t count);
  /// `factor` times such numbers, which bf16 represents exactly.
  Values random_bf16(std::size_t count, float factor = 1);
  std::vector<std::uint8_t> random_bytes(std::size_t count, std::uint32_t below);

 private:
  std::unique_ptr<Backend> backend_, reference_;
  std::vector<DeviceBuffer> buffers_;
  penstock::test::SeededRandom choices_{7};
};

class OpsConformance : public BackendTest {};
class LinearConformance : public BackendTest {
 protected:
  struct Layer;
  Layer random_layer(MatmulSize size);
};
class AttentionConformance : public BackendTest {
 protected:
  /// Compares forward and backward of `qkv` and a random gradient with the reference.
  void expect_reference(AttentionSize size, const Values& qkv);
};
class ModelConformance : public BackendTest {
 protected:
  /// Compares the gradient of each parameter that is trained with differences of the loss.
  void expect_differences(const ModelConfig& config);
  /// Compares the gradients of a model whose matrices are cut with those of `whole`.
  void expect_the_same_of_row_blocks(const ModelConfig& whole);
};

/// The bf16 nearest to x, ties to even, by a rule of its own: through the spacing of bf16 at x, in double.
float nearest_bf16(float x);

void expect_near(const Values& got, const Values& wanted, double tolerance);

/// Compares `gradients` of Σ dy · forward(inputs) with central differences, element by element, for the
/// first gradients.size() inputs. `tolerance` is relative to 1 + |gradient|.
void expect_gradients(const std::function<Values(const std::vector<Values>&)>& forward,
                      std::vector<Values> inputs, const Values& dy, const std::vector<Values>& gradients,
                      double tolerance = 3e-3);

}  // namespace gpt::test
