"""Names of JAX primitives that rewrites of traced steps treat alike."""

# Primitives that compute with each element by itself.
ELEMENTWISE = frozenset(
    "abs acos add add_any and asin atan atan2 cbrt ceil clamp convert_element_type copy copy_p cos cosh div "
    "eq erf erf_inv erfc exp exp2 expm1 floor ge gt integer_pow is_finite le lgamma log log1p log2 logistic lt min "
    "mul ne neg nextafter not one_minus_square optimization_barrier or pow reduce_precision rem round rsqrt select_n "
    "sign "
    "sin sinh sqrt square stop_gradient sub tan tanh xor".split()
)
# Primitives that call a jaxpr, and the parameter that holds it.
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
}
