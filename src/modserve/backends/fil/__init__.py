"""The ``fil`` backend: forests of XGBoost, LightGBM, scikit-learn and Treelite, as Triton's backend serves them."""
