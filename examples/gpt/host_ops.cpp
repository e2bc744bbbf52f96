#include "gpt/host_ops.hpp"

#include "gpt/host_attention.hpp"
#include "gpt/host_kernels.hpp"
#include "gpt/host_matmul.hpp"
#include "gpt/tensor_pointer.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>
#include <limits>
#include <utility>

namespace gpt {

namespace {

using host::Transpose;
using penstock::DType;

/// to = the values of a parameter.
void widen(DeviceTensor parameter, float* to) {
  const auto* const narrow = pointer<const std::uint16_t>(parameter);
  switch (parameter.dtype) {
    case DType::fp32: std::copy_n(floats(parameter), count(parameter), to); break;
    case DType::bf16: host::widen_bf16(narrow, to, count(parameter)); break;
    case DType::fp16: host::widen_fp16(narrow, to, count(parameter)); break;
  }
}

/// Memory for the fp32 copy of one parameter at a time, alive as long as any closure that uses it.
class Scratch {
 public:
  explicit Scratch(DeviceBuffer buffer) : buffer_(std::move(buffer)) {}

  /// A parameter as fp32: its own bytes if it is fp32, else a copy at element `first` of the scratch.
  const float* values(DeviceTensor parameter, std::size_t first = 0) const {
    if (parameter.dtype == DType::fp32) return floats(parameter);
    float* copy = at(first, count(parameter));
    widen(parameter, copy);
    return copy;
  }
  float* at(std::size_t first, std::size_t length) const {
    PENSTOCK_CHECK((first + length) * sizeof(float) <= buffer_.bytes.size().value());
    return pointer<float>(buffer_.bytes) + first;
  }

 private:
  DeviceBuffer buffer_;
};

DeviceTensor row_of(DeviceTensor matrix, std::size_t row, std::size_t columns) {
  return matrix.slice(penstock::ElementCount(row * columns), penstock::ElementCount(columns));
}
bool is_wanted(const Gradient& gradient) {
  return count(gradient.tensor) > 0;
}

void store(const float* values, const Gradient& gradient) {
  const DeviceTensor& to = gradient.tensor;
  auto* const narrow = pointer<std::uint16_t>(to);
  switch (to.dtype) {
    case DType::fp32: host::store_fp32(values, floats(to), count(to), gradient.write); break;
    case DType::bf16: host::store_bf16(values, narrow, count(to), gradient.write); break;
    case DType::fp16: host::store_fp16(values, narrow, count(to), gradient.write); break;
  }
}

class HostOps final : public Ops {
 public:
  explicit HostOps(DeviceBuffer scratch) : scratch_(std::make_shared<const Scratch>(std::move(scratch))) {}

  DType operand_dtype() const override { return DType::fp32; }
  bool supports(DType) const override { return true; }
  OpsLimits limits() const override {
    return {.head_width_max = std::numeric_limits<std::uint32_t>::max(),
            .head_width_multiple = 1,
            .rank_multiple = 1};
  }
  penstock::Result<void> status() const override { return penstock::ok(); }

  void linear(StreamHandle stream, MatmulSize size, const Linear& in, DeviceTensor y) override {
    enqueue(stream, [=, scratch = scratch_] { multiply(*scratch, size, in, floats(y)); });
  }

  void linear_add(StreamHandle stream, MatmulSize size, const Linear& in, DeviceTensor residual,
                  DeviceTensor y) override {
    enqueue(stream, [=, scratch = scratch_] {
      if (floats(residual) == floats(y)) return multiply(*scratch, size, in, floats(y), /*add=*/true);
      multiply(*scratch, size, in, floats(y));
      for_each_run(size, [&](std::size_t first, std::size_t length) {
        host::add(floats(residual) + first, floats(y) + first, length);
      });
    });
  }

  void linear_gelu(StreamHandle stream, MatmulSize size, const Linear& in, DeviceTensor up,
                   DeviceTensor y) override {
    enqueue(stream, [=, scratch = scratch_] {
      multiply(*scratch, size, in, floats(up));
      for_each_run(size, [&](std::size_t first, std::size_t length) {
        host::gelu(floats(up) + first, floats(y) + first, length);
      });
    });
  }

  void linear_backward(StreamHandle stream, MatmulSize size, DeviceTensor dy, DeviceTensor w,
                       const Gradient& dx) override {
    enqueue(stream, [=, scratch = scratch_] { multiply_back(*scratch, size, dy, w, dx); });
  }

  void linear_gelu_backward(StreamHandle stream, MatmulSize size, DeviceTensor dy, DeviceTensor w,
                            DeviceTensor up, DeviceTensor dup) override {
    enqueue(stream, [=, scratch = scratch_] {
      multiply_back(*scratch, size, dy, w, {dup});
      host::gelu_backward(floats(up), floats(dup), floats(dup), count(dup));
    });
  }

  void linear_gradients(StreamHandle stream, MatmulSize size, DeviceTensor dy, DeviceTensor x, Gradient dw,
                        Gradient db) override {
    enqueue(stream, [=, scratch = scratch_] {
      float* sum = scratch->at(0, std::size_t{size.outputs} * size.inputs);
      const float* const from = floats(dy) + size.first;
      if (is_wanted(dw)) {
        host::product({size.outputs, size.inputs, size.rows}, {from, size.columns, Transpose::yes},
                      {floats(x), size.inputs}, {sum, size.inputs}, /*add=*/false, size.scale);
        store(sum, dw);
      }
      if (is_wanted(db)) {
        host::column_sums({size.rows, size.outputs}, size.columns, from, sum);
        store(sum, db);
      }
    });
  }

  void gelu_backward(StreamHandle stream, DeviceTensor dy, DeviceTensor up, DeviceTensor dup) override {
    enqueue(stream, [=] { host::gelu_backward(floats(up), floats(dy), floats(dup), count(dup)); });
  }

  void round(StreamHandle stream, DeviceTensor x, DeviceTensor y) override {
    enqueue(stream, [=] { std::copy_n(floats(x), count(x), floats(y)); });
  }

  void add(StreamHandle stream, DeviceTensor x, DeviceTensor y) override {
    enqueue(stream, [=] { host::add(floats(x), floats(y), count(x)); });
  }

  void layer_norm(StreamHandle stream, RowsSize size, DeviceTensor x, DeviceTensor gain, DeviceTensor b,
                  DeviceTensor y, DeviceTensor statistics) override {
    enqueue(stream, [=, scratch = scratch_] {
      host::layer_norm(size, floats(x), scratch->values(gain), scratch->values(b, size.columns), floats(y),
                       floats(statistics));
    });
  }

  void layer_norm_backward(StreamHandle stream, RowsSize size, const LayerNormBackward& t) override {
    enqueue(stream, [=, scratch = scratch_] {
      float* dgain = scratch->at(size.columns, size.columns);
      float* db = scratch->at(2 * std::size_t{size.columns}, size.columns);
      host::layer_norm_backward(size, floats(t.x), scratch->values(t.gain), floats(t.statistics),
                                floats(t.dy), floats(t.dx), dgain, db);
      store(dgain, t.dgain);
      store(db, t.db);
    });
  }

  void attention(StreamHandle stream, AttentionSize size, DeviceTensor qkv, DeviceTensor log_sums,
                 DeviceTensor y) override {
    enqueue(stream, [=] { host::attention(size, floats(qkv), floats(log_sums), floats(y)); });
  }

  void attention_backward(StreamHandle stream, AttentionSize size, const AttentionBackward& t) override {
    enqueue(stream, [size, t] {
      host::attention_backward(size, {.qkv = floats(t.qkv),
                                      .log_sums = floats(t.log_sums),
                                      .y = floats(t.y),
                                      .dy = floats(t.dy),
                                      .projections = floats(t.projections),
                                      .dqkv = floats(t.dqkv)});
    });
  }

  void embed(StreamHandle stream, EmbeddingSize size, DeviceSpan tokens, DeviceTensor embedding,
             DeviceTensor positions, DeviceTensor y) override {
    enqueue(stream, [=, scratch = scratch_] {
      const std::size_t width = size.width, rows = std::size_t{size.sequences} * size.context;
      float* vector = scratch->at(0, width);
      for (std::size_t row = 0; row < rows; ++row) {
        float* out = floats(y) + row * width;
        widen(row_of(embedding, pointer<const std::uint8_t>(tokens)[row], width), out);
        widen(row_of(positions, row % size.context, width), vector);
        host::add(vector, out, width);
      }
    });
  }

  void embed_backward(StreamHandle stream, EmbeddingSize size, DeviceSpan tokens, DeviceTensor dy,
                      Gradient dembedding, Gradient dpositions) override {
    enqueue(stream, [=, scratch = scratch_] {
      const std::size_t width = size.width, rows = std::size_t{size.sequences} * size.context;
      float* vectors = scratch->at(0, count(dembedding.tensor));
      float* position = scratch->at(count(dembedding.tensor), width);
      std::fill_n(vectors, count(dembedding.tensor), 0.0f);
      for (std::size_t row = 0; row < rows; ++row) {
        host::add(floats(dy) + row * width, vectors + pointer<const std::uint8_t>(tokens)[row] * width,
                  width);
      }
      store(vectors, dembedding);
      for (std::size_t place = 0; place < size.context; ++place) {
        std::fill_n(position, width, 0.0f);
        for (std::size_t row = place; row < rows; row += size.context) {
          host::add(floats(dy) + row * width, position, width);
        }
        store(position, {row_of(dpositions.tensor, place, width), dpositions.write});
      }
    });
  }

  void cross_entropy(StreamHandle stream, RowsSize size, DeviceTensor logits, DeviceSpan targets,
                     DeviceTensor losses) override {
    enqueue(stream, [=] {
      host::cross_entropy(size, floats(logits), pointer<const std::uint8_t>(targets), floats(losses));
    });
  }

  void cross_entropy_backward(StreamHandle stream, RowsSize size, DeviceTensor logits, DeviceSpan targets,
                              float scale, DeviceTensor dlogits) override {
    enqueue(stream, [=] {
      host::cross_entropy_backward(size, floats(logits), pointer<const std::uint8_t>(targets), scale,
                                   floats(dlogits));
    });
  }

 private:
  static void enqueue(StreamHandle stream, std::function<void()> operation) {
    stream.host_queue()->enqueue(std::move(operation));
  }

  /// y = x · wᵀ + b (+ y, when `add`).
  static void multiply(const Scratch& scratch, MatmulSize size, const Linear& in, float* y,
                       bool add = false) {
    y += size.first;
    host::product({size.rows, size.outputs, size.inputs}, {floats(in.x), size.inputs},
                  {scratch.values(in.w), size.inputs, Transpose::yes}, {y, size.columns}, add, size.scale);
    if (count(in.b) > 0) host::add_bias({size.rows, size.outputs}, size.columns, scratch.values(in.b), y);
  }
  /// dx = dy · w. Activations are fp32.
  static void multiply_back(const Scratch& scratch, MatmulSize size, DeviceTensor dy, DeviceTensor w,
                            const Gradient& dx) {
    host::product({size.rows, size.inputs, size.outputs}, {floats(dy) + size.first, size.columns},
                  {scratch.values(w), size.inputs}, {floats(dx.tensor), size.inputs},
                  dx.write == GradientWrite::accumulate, size.scale);
  }
  /// Calls visit(first, length) for each run of consecutive elements of a block's columns.
  template <class Visit>
  static void for_each_run(MatmulSize size, const Visit& visit) {
    if (size.is_whole()) return visit(0, std::size_t{size.rows} * size.columns);
    for (std::size_t row = 0; row < size.rows; ++row) visit(row * size.columns + size.first, size.outputs);
  }

  std::shared_ptr<const Scratch> scratch_;
};

}  // namespace

penstock::Result<std::unique_ptr<Ops>> make_host_ops(DeviceBuffer scratch) {
  PENSTOCK_TRY(host::prepare_products());
  return std::make_unique<HostOps>(std::move(scratch));
}

}  // namespace gpt
