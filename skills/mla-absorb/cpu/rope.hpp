// Rotary embedding, interleaved pairs: angles in double, as the truth has them; theta 10000.
template <int ROPE>
struct alignas(64) RopeTable {
    float cos[ROPE / 2], sin[ROPE / 2];

    void fill(int64_t position) {
        const double ratio = std::exp(-2.0 / ROPE * std::log(10000.0));
        double angle = double(position);
        for (int j = 0; j < ROPE / 2; ++j, angle *= ratio) {
            cos[j] = float(std::cos(angle));
            sin[j] = float(std::sin(angle));
        }
    }
};
